"""A baseline of bench.ingest: a Flask view that inserts one row for each request and commits, served as the API is.

It has neither parsing nor rules, counters or detection of repeats: the least that any API in Flask over PostgreSQL does
before it answers 202.
"""

import itertools
import os
import threading
import uuid
from typing import Any

import psycopg2
import sqlalchemy as sa
from flask import Flask, Response, request

from bench.bare_view import ANSWER

_URL = sa.make_url(os.environ["BUCKETWIRE_DATABASE_URL"]).set(drivername="postgresql")
_INSERT = (
    "INSERT INTO events (partition, seq, id, key_hash, received_at, name, bucket, key, version, sequencer, time,"
    " targets, record, trace) VALUES (1, %s, %s, 1, 1, 's3:ObjectCreated:Put', 'b', 'k', '', '1', 1, ',1,', %s, '')"
)
_numbers = itertools.count(os.getpid() * 10**9)
_own = threading.local()

app = Flask("insert")


@app.post("/v1/events")
def events() -> Response:
    """Insert the body as the record of an event, and answer as the API does."""
    connection: Any = getattr(_own, "connection", None)
    if connection is None:
        connection = _own.connection = psycopg2.connect(_URL.render_as_string(hide_password=False))
    with connection, connection.cursor() as cursor:
        cursor.execute(_INSERT, (next(_numbers), uuid.uuid4().hex, request.get_data(as_text=True)))
    return Response(ANSWER, 202, mimetype="application/json")


@app.get("/healthz")
def healthz() -> Response:
    """Say that the server is up."""
    return Response(b"{}", mimetype="application/json")
