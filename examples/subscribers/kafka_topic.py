"""Print the events of a topic, from where the group `mine` stopped."""

import json
from kafka import KafkaConsumer

consumer = KafkaConsumer(
    "minio_events", bootstrap_servers="localhost:9092", group_id="mine", auto_offset_reset="earliest"
)
for message in consumer:
    event = json.loads(message.value)
    print(event["EventName"], event["Key"])
