"""Print the objects of all buckets: the table mirrors the buckets.

bucketwire target set postgresql:1 'connection_string=host=localhost user=me password=secret dbname=events' table=bucketobjects
pip install psycopg2-binary
"""  # noqa: E501

import psycopg2

with psycopg2.connect("host=localhost port=5432 user=me password=secret dbname=events") as database:
    rows = database.cursor()
    rows.execute("SELECT key, value #>> '{Records,0,s3,object,size}' FROM bucketobjects ORDER BY key")
    for key, size in rows:
        print(key, size)
