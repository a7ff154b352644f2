"""Transactions that a deadlock has rolled back are made once, by those who are not asked to try again themselves.

`test_deadlocks` has deadlocks of real servers; `tests/unit/test_write_transactions.py` finds the transactions.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from app.config.bucket_settings import BucketId
from app.manifest.plan import set_keys
from app.outbox import audit, buckets, log_head, tables
from app.outbox.audit import AuditFilter
from app.outbox.delivery import availability, redelivery
from app.outbox.delivery.availability import RateLimit
from app.outbox.delivery.leases import Leases
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.reconcile.runs import begin_tables, read_findings, store_findings
from app.outbox.sources.rows import SourceLeases
from app.outbox.tokens import Sessions, Tokens
from tests.support.builders import add_target, event, registry
from tests.support.lost_transactions import lost_once
from tests.support.pulled_events import Sources, reject

pytestmark = pytest.mark.parametrize("outbox_url", ["sqlite"], indirect=True)


class Losing:
    """Runs a step with a deadlock at the commit of its first transaction."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database, self._monkeypatch = database, monkeypatch

    def __call__(self, step: Callable[[], object], times: int = 2) -> object:
        with self._monkeypatch.context() as patch:
            lost = lost_once(self.database, patch)
            result = step()
        assert len(lost) == times, lost
        return result


@pytest.fixture
def losing(database: Database, monkeypatch: pytest.MonkeyPatch) -> Losing:
    return Losing(database, monkeypatch)


def count(database: Database, table: sa.Table) -> int:
    with database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def test_a_sources_lease_is_claimed_begun_renewed_and_released(database: Database, losing: Losing) -> None:
    sources = Sources(database)
    stored = sources.stored(sources.put("kafka", {"brokers": "h:9092", "topic": "t"}))
    leases = SourceLeases(database, 60_000)
    lease = losing(lambda: leases.claim(stored, now_ms()))
    assert lease is not None
    losing(lambda: leases.begin(lease, now_ms(), {"0": "7"}, "messages were lost"))
    assert (lease.positions, count(database, tables.source_positions)) == ({"0": "7"}, 1)
    losing(lambda: leases.renew(lease, now_ms()))
    losing(lambda: leases.fail(lease, now_ms(), "why", 0))
    [left] = leases.free(now_ms())
    assert left.failures == 1


def test_rejected_messages_are_recorded_and_deleted(database: Database, losing: Losing) -> None:
    sources = Sources(database)
    source = sources.put("kafka", {"brokers": "h:9092", "topic": "t"}, "minio")
    losing(lambda: reject(database, b"{", b"{{"), times=5)  # of a lease, and of the messages
    assert count(database, tables.rejected_messages) == 2
    assert losing(lambda: sources.rejected.delete(sources.stored(source), None)) == 2
    [entry] = audit.entries(database, AuditFilter(actions=("source.delete_rejected",)), limit=9)
    assert entry.details == {"messages": 2}


def test_a_target_is_probed_and_its_breaker_opens_and_closes(database: Database, losing: Losing) -> None:
    row_id = registry(database).target(add_target(database)).row_id
    Log(database).append([[event("k")]])
    assert losing(lambda: availability.open_breaker(database, row_id, "no", 1, probing=False))
    assert availability.count_failures(database, row_id) == 1
    leases = Leases(database, 60_000)
    lease = losing(lambda: leases.claim_due(row_id, "token", now_ms()), times=3)
    assert lease is not None
    losing(lambda: availability.close_breaker(database, row_id))
    assert availability.count_failures(database, row_id) == 0


def test_a_new_epoch_begins_once(database: Database, losing: Losing) -> None:
    row_id = registry(database).target(add_target(database)).row_id
    with database.reading() as connection:
        state = log_head.read_state(connection)
    leases = Leases(database, 60_000)
    leases._state = state._replace(last_seq=state.last_seq + 9)
    losing(lambda: leases.claim(row_id, [0], "token", now_ms()), times=4)
    with database.reading() as connection:
        assert log_head.read_state(connection).epoch != state.epoch
    assert len(audit.entries(database, AuditFilter(actions=("log.new_epoch",)), limit=9)) == 1


def test_redeliveries_are_requested(database: Database, losing: Losing) -> None:
    row_id = registry(database).target(add_target(database)).row_id
    losing(lambda: redelivery.request(database, row_id, {(0, 1): 1, (1, 2): 1}))
    assert count(database, tables.redeliveries) == 2


def test_what_people_ask_for_is_done_once(database: Database, losing: Losing) -> None:
    sessions, tokens = Sessions(database), Tokens(database)
    losing(lambda: sessions.begin("number", "subject", 60))
    assert sessions.is_active("number")
    losing(lambda: sessions.end("number"))
    assert not sessions.is_active("number")
    losing(lambda: tokens.create("t", {"read"}), times=3)
    losing(lambda: set_keys(registry(database), {BucketId("images"): {"region": "eu-central-1"}}))
    losing(lambda: buckets.remove_bucket(database, "images"))
    losing(lambda: audit.record_alone(database, "target.test", "target:webhook:a", {}))
    run = str(losing(lambda: begin_tables(database, lease=60_000)))
    losing(lambda: store_findings(database, run, [{"kind": "missing"}]))
    assert len(read_findings(database, run)) == 1
    actions = [entry.action for entry in audit.entries(database, AuditFilter(), limit=99)]
    assert sorted(actions) == sorted({*actions}), "each once"


def test_tokens_of_a_rate_limit_are_taken_and_given_back(database: Database, losing: Losing) -> None:
    now = now_ms()
    bucket = RateLimit(database, 7, 100, lambda: now)
    assert losing(lambda: bucket.take(60)) == 60
    losing(lambda: bucket.give_back(60))
    assert bucket.take(100) == 100
