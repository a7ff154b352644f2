"""Every form of the console that changes something, sent by a session that is limited to a bucket and a target."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from app.outbox import tables
from app.outbox.admin.replays import Replays, Selection
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.tokens import Tokens
from tests.integration.console.conftest import TOKENS, Browser, Opened
from tests.services import until
from tests.support.builders import add_target, event, registry
from tests.support.pulled_events import Sources, reject
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.outcomes import Failed, Outcome, Rejected

_OF_SESSIONS = {"console_sessions", "tokens"}  # tables that each of its requests changes
# Where a form leads that changes nothing of the service, or that everybody may send.
OPEN = {"/console/sign-in", "/console/sign-out"}


def stored(database: Database) -> dict[str, list[Any]]:
    """Everything that the outbox has, but for what counts requests, which is written every few seconds."""
    with database.reading() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(sa.select(table))))
            for table in tables.metadata.sorted_tables
            if table.name not in (*_OF_SESSIONS, tables.request_counts.name, tables.refusals.name)
        }


@pytest.fixture
def session(browse: Opened, database: Database) -> Browser:
    """A session that may change `webhook:audit`, beside another target with dead letters, retries and a replay."""
    mine, other = add_target(database, "audit", bucket="images"), add_target(database, "payroll", bucket="salaries")
    Log(database).append([[event("dead", bucket="salaries"), event("slow", bucket="salaries")]])
    outcomes: dict[str, Outcome] = {"dead": Rejected("no such column"), "slow": Failed("broken", retry_after=600)}
    Courier(database, other, ScriptedTarget(lambda given: outcomes[given.key])).run()
    Replays(database).begin(other, Selection(bucket="salaries"))
    Sources(database).put("kafka", {"brokers": "127.0.0.1:9", "topic": "events"}, name="minio")
    reject(database, b"{")
    tokens = Tokens(database)
    tokens.create("another", ["admin"])
    token = tokens.create("team", ["admin"], buckets=["images"], targets=[mine])
    browser = browse(api_tokens=TOKENS)
    until(lambda: browser.sign_in(token).status == 303)
    return browser


FILLED: Mapping[str, str] = {
    "scope": "matching", "confirmed": "1", "all": "1", "typed": "purge", "target": "webhook:payroll",
    "bucket": "salaries", "events": "*", "ids": "1", "target_name": "mine", "name": "mine",
    "scopes": "admin", "s.endpoint": "http://127.0.0.1:9/", "s.brokers": "127.0.0.1:9", "s.topic": "t",
}  # fmt: skip


def test_no_form_changes_what_is_beyond_the_limits(session: Browser, database: Database) -> None:
    rules = [rule.row_id for rule in registry(database).rules()]
    before, tried = stored(database), set[str]()
    assert all(before[name] for name in ("dead_letters", "parked", "replays", "rejected_messages", "rules", "sources"))
    form = session.get("").form
    of_salaries = event("dead", bucket="salaries").id
    for rule in session.app.url_map.iter_rules():
        if "POST" not in (rule.methods or ()) or not rule.rule.startswith("/console/") or rule.rule in OPEN:
            continue
        for room in ("targets", "sources"):
            values = {"room": room, "kind": "webhook" if room == "targets" else "kafka", "event_id": of_salaries}
            values |= {"name": "payroll" if room == "targets" else "minio", "run": "x", "rest": "x"}
            values |= {"name": "another"} if "tokens" in rule.rule else {}
            for number in (*rules, 1):
                given = values | {"number": str(number)}
                path = re.sub(r"<(?:[^:>]*:)?(\w+)>", r"{\1}", rule.rule).format(**given)
                for typed in (f"{values['kind']}:{values['name']}", values["name"], "purge"):
                    filled = FILLED | {"typed": typed, "type": values["kind"]}
                    page = session.post(path.removeprefix("/console/"), form=form, **filled)
                    assert page.status in (303, 400, 403, 404), (path, page.text)
        tried.add(rule.rule)
    assert len(tried) >= 20, tried
    assert stored(database) == before
    assert {token.name for token in Tokens(database).list()} == {"another", "team"}


@pytest.mark.parametrize("button", ["save", "test"])
def test_its_own_targets_form_sets_nothing_that_it_may_not(session: Browser, database: Database, button: str) -> None:
    secret_file = f"file:{__file__}"
    before, path = stored(database), "targets/webhook/audit/edit"
    given = {"s.endpoint": "http://127.0.0.1:9/", **({"test": "1"} if button == "test" else {})}
    for beyond in (
        {"s.auth_token": secret_file}, {"s.auth_token": "env:HOME"}, {"s.signing_secret": secret_file},
        {"s.client_cert": __file__, "s.client_key": __file__}, {"s.tls_ca": __file__}, {"s.read_timeout": "1h"},
        {"s.timeout": "61s"}, {"s.max_in_flight": "1001"}, {"s.batch_size": "1001"}, {"s.allow_private": "on"},
        {"s.queue_limit": "9", "s.queue_full": "reject"},
        {"s.endpoint": "http://169.254.169.254/"}, {"s.endpoint": "http://[fe80::1]/"},
    ):  # fmt: skip
        page = session.post(path, **given | beyond)
        assert page.status == 403 or (button == "test" and "limited" in page.text), (beyond, page.status, page.text)
    assert stored(database) == before
