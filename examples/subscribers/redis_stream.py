"""Print the events of a stream as a member of a consumer group, which gets each event that no other member got.

bucketwire target set redis:3 address=localhost:6379 key=bucketstream format=stream max_entries=1000000
pip install redis
"""

import contextlib, json, redis

events = redis.Redis("localhost", 6379, decode_responses=True)
with contextlib.suppress(redis.ResponseError):  # the group exists
    events.xgroup_create("bucketstream", "thumbnails", id="0", mkstream=True)
while batch := events.xreadgroup("thumbnails", "worker-1", {"bucketstream": ">"}, count=100, block=1000):
    for entry, fields in batch[0][1]:
        record = json.loads(fields["body"])["Records"][0]
        print(fields["event"], fields["bucket"], fields["key"], record["s3"]["object"].get("size", 0))
        events.xack("bucketstream", "thumbnails", entry)
