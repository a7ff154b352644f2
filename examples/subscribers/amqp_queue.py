"""Print the events of an exchange, through a queue of its own that keeps them while this does not run.

bucketwire target set amqp:1 url=amqp://guest:guest@localhost:5672 exchange=bucketevents exchange_type=fanout
pip install pika
"""

import json, pika

channel = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@localhost:5672/%2F")).channel()
channel.queue_declare("thumbnails", durable=True)
channel.queue_bind("thumbnails", "bucketevents")
for method, _, body in channel.consume("thumbnails", inactivity_timeout=1):
    if method is None:
        break
    for record in json.loads(body)["Records"]:
        print(record["eventName"], record["s3"]["bucket"]["name"], record["s3"]["object"]["key"])
    channel.basic_ack(method.delivery_tag)
