"""Print the objects of all buckets: the table mirrors the buckets.

bucketwire target set mysql:1 'dsn_string=me:secret@tcp(localhost:3306)/events' table=bucketobjects
pip install pymysql
"""

import pymysql

with pymysql.connect(host="localhost", port=3306, user="me", password="secret", database="events") as database:
    rows = database.cursor()
    rows.execute("SELECT key_name, value->>'$.Records[0].s3.object.size' FROM bucketobjects ORDER BY key_name")
    for key, size in rows:
        print(key, size)
