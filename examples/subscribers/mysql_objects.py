"""Print the objects of all buckets: the table mirrors the buckets."""

import pymysql

with pymysql.connect(host="localhost", port=3306, user="me", password="secret", database="events") as database:
    rows = database.cursor()
    rows.execute("SELECT key_name, value->>'$.Records[0].s3.object.size' FROM bucketobjects ORDER BY key_name")
    for key, size in rows:
        print(key, size)
