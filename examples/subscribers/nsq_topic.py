"""Print the events of a topic, each once among all programs of the channel `mine`."""

import json, nsq


def received(message):
    event = json.loads(message.body)
    print(event["EventName"], event["Key"])
    return True


nsq.Reader(message_handler=received, nsqd_tcp_addresses=["localhost:4150"], topic="minio_events", channel="mine")
nsq.run()
