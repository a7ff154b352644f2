"""Print the events since a time: the table has a row for each event.

bucketwire target set mysql:2 'dsn_string=me:secret@tcp(localhost:3306)/events' table=bucketevents format=access
pip install pymysql
"""

import pymysql

with pymysql.connect(host="localhost", port=3306, user="me", password="secret", database="events") as database:
    rows = database.cursor()
    rows.execute(
        "SELECT event_time, JSON_UNQUOTE(JSON_EXTRACT(event_data, '$.Records[0].eventName')), "
        "JSON_UNQUOTE(JSON_EXTRACT(event_data, '$.Records[0].s3.object.key')) "
        "FROM bucketevents WHERE event_time >= %s ORDER BY event_time",
        ["2020-01-01 00:00:00"],
    )
    for time, name, key in rows:
        print(time.isoformat(), name, key)
