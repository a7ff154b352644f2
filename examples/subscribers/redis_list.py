"""Print the events of a list, oldest first, and remove them from it.

bucketwire target set redis:1 address=localhost:6379 key=bucketevents format=access
pip install redis
"""

import json, redis

events = redis.Redis("localhost", 6379)
while entry := events.blpop("bucketevents", timeout=1):
    for record in json.loads(entry[1])[0]["Event"]:
        print(record["eventName"], record["s3"]["bucket"]["name"], record["s3"]["object"]["key"])
