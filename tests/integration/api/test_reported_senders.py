"""What senders post by public reports, posted to a real API: its events are in the log, or the refusal says why not."""

from __future__ import annotations

import json

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database
from tests.integration.api.conftest import Api
from tests.support.reported_senders import RIGHT, Fact, reports


def recorded(database: Database) -> list[Fact]:
    """What is in the log, in order."""
    e = tables.events.c
    query = sa.select(e.name, e.bucket, e.key, e.version, e.record).order_by(e.seq)
    with database.reading() as connection:
        return [
            Fact(row.name, f"{row.bucket}/{row.key}", row.version, json.loads(row.record)["s3"]["object"].get("size"))
            for row in connection.execute(query)
        ]


def test_what_is_reported_of_senders_is_recorded_as_what_it_is_about(plain: Api, plain_log: Database) -> None:
    expected: list[Fact] = []
    for number, right in RIGHT.items():
        report = reports()[number]
        answer = plain.post(json.dumps(report["body"]).encode(), query=report["query"])
        if isinstance(right, str):
            assert (answer.status_code, right in answer.json()["detail"]) == (400, True), report
        else:
            assert answer.status_code == 202, answer.text
            expected += [fact for fact in right if fact not in expected]
    assert [fact for fact in recorded(plain_log) if fact in expected] == recorded(plain_log)
    assert set(recorded(plain_log)) == set(expected)
