"""Print the events since a time: the table has a row for each event.

bucketwire target set postgresql:2 'connection_string=host=localhost user=me password=secret dbname=events' table=bucketevents format=access
pip install psycopg2-binary
"""  # noqa: E501

import psycopg2

with psycopg2.connect("host=localhost port=5432 user=me password=secret dbname=events") as database:
    rows = database.cursor()
    rows.execute(
        "SELECT event_time, event_data #>> '{Records,0,eventName}', event_data #>> '{Records,0,s3,object,key}' "
        "FROM bucketevents WHERE event_time >= %s ORDER BY event_time",
        ["2020-01-01T00:00:00Z"],
    )
    for time, name, key in rows:
        print(time.isoformat(), name, key)
