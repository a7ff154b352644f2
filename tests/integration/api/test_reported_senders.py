"""What senders post by public reports, posted to a real API: its events are in the log, or the refusal says why not."""

from __future__ import annotations

import json

from app.outbox.engine.database import Database
from tests.integration.api.conftest import Api
from tests.support.reported_senders import RIGHT, Fact, logged_facts, reports


def test_what_is_reported_of_senders_is_recorded_as_what_it_is_about(plain: Api, plain_log: Database) -> None:
    expected: list[Fact] = []
    for number, right in RIGHT.items():
        report = reports()[number]
        answer = plain.post(json.dumps(report["body"]).encode(), query=report["query"], **report.get("headers", {}))
        if isinstance(right, str):
            assert (answer.status_code, right in answer.json()["detail"]) == (400, True), report
        else:
            assert answer.status_code in (200, 202), answer.text
            expected += [fact for fact in right if fact not in expected]
    assert logged_facts(plain_log) == expected
