"""Print the events of a topic, each once among all programs of the channel `mine`.

bucketwire target set nsq:1 nsqd_address=localhost:4150 topic=minio_events
pip install pynsq
"""

import json, nsq


def received(message):
    event = json.loads(message.body)
    print(event["EventName"], event["Key"])
    return True


nsq.Reader(message_handler=received, nsqd_tcp_addresses=["localhost:4150"], topic="minio_events", channel="mine")
nsq.run()
