"""Print the events of a topic, from where the group `mine` stopped.

bucketwire target set kafka:1 brokers=localhost:9092 topic=minio_events
pip install kafka-python
"""

import json
from kafka import KafkaConsumer

consumer = KafkaConsumer(
    "minio_events", bootstrap_servers="localhost:9092", group_id="mine", auto_offset_reset="earliest"
)
for message in consumer:
    event = json.loads(message.value)
    print(event["EventName"], event["Key"])
