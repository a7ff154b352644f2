"""Print the objects of all buckets: the hash mirrors the buckets.

bucketwire target set redis:2 address=localhost:6379 key=bucketobjects
pip install redis
"""

import json, redis

objects = redis.Redis("localhost", 6379, decode_responses=True)
for path, document in objects.hscan_iter("bucketobjects"):
    print(path, json.loads(document)["Records"][0]["s3"]["object"].get("size", 0))
