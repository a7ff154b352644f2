"""Print what the bucket `images` holds, largest first: the index mirrors the buckets.

bucketwire target set elasticsearch:1 url=http://localhost:9200 index=bucketobjects username=me password=secret
pip install 'elasticsearch<9'
"""

from urllib.parse import unquote_plus
from elasticsearch import Elasticsearch

client = Elasticsearch("http://localhost:9200", basic_auth=("me", "secret"))
client.indices.refresh(index="bucketobjects")
found = client.search(
    index="bucketobjects",
    query={"term": {"Records.s3.bucket.name.keyword": "images"}},
    sort={"Records.s3.object.size": "desc"},
)
for hit in found["hits"]["hits"]:
    thing = hit["_source"]["Records"][0]["s3"]["object"]
    print(unquote_plus(thing["key"]), thing["size"])
