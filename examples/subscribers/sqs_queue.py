"""Print the events of a queue, and delete them from it.

bucketwire target set sqs:1 queue_url=http://localhost:9324/000000000000/bucketevents access_key=x secret_key=x
pip install botocore
"""

import json, botocore.session

queue = "http://localhost:9324/000000000000/bucketevents"
options = {"region_name": "us-east-1", "endpoint_url": queue.rsplit("/", 2)[0]}  # of AWS, leave the endpoint out
sqs = botocore.session.get_session().create_client("sqs", aws_access_key_id="x", aws_secret_access_key="x", **options)
while messages := sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages"):
    for message in messages:
        for record in json.loads(message["Body"])["Records"]:
            print(record["eventName"], record["s3"]["bucket"]["name"], record["s3"]["object"]["key"])
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
