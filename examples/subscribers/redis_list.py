"""Print the events of a list, oldest first, and remove them from it."""

import json, redis

events = redis.Redis("localhost", 6379)
while entry := events.blpop("bucketevents", timeout=1):
    for record in json.loads(entry[1])[0]["Event"]:
        print(record["eventName"], record["s3"]["bucket"]["name"], record["s3"]["object"]["key"])
