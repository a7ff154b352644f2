"""Count the events of each name by the hour, of one bucket in a week: what Kibana's Discover asks for its chart.

The index is that of a target with `format=access` and `access_shape=guide`, which gives documents `@timestamp`.

    bucketwire target set elasticsearch:2 url=http://localhost:9200 index=bucketevents username=me password=secret format=access access_shape=guide
    pip install 'elasticsearch<9'
"""  # noqa: E501

from elasticsearch import Elasticsearch

client = Elasticsearch("http://localhost:9200", basic_auth=("me", "secret"))
found = client.search(
    index="bucketevents",
    size=0,
    query={
        "bool": {
            "filter": [
                {"range": {"@timestamp": {"gte": "now-7d"}}},
                {"query_string": {"query": 'Records.s3.bucket.name:"images" AND NOT Records.eventName:*Accessed*'}},
            ]
        }
    },
    aggs={
        "hours": {
            "date_histogram": {"field": "@timestamp", "calendar_interval": "hour", "min_doc_count": 1},
            "aggs": {"names": {"terms": {"field": "Records.eventName.keyword"}}},
        }
    },
)
for hour in found["aggregations"]["hours"]["buckets"]:
    for name in hour["names"]["buckets"]:
        print(hour["key_as_string"], name["key"], name["doc_count"])
