"""A mirror ends as the bucket is, whatever dies, is purged, is replayed, and whatever the clocks said meanwhile.

Told by a model: what the bucket holds. Its events are recorded in order; every other thing may happen at any point.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis.strategies as st
import pytest
import sqlalchemy as sa
from hypothesis import given

from app.events.model import Event
from app.outbox import tables
from app.outbox.admin.replays import Replays, Selection
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.column_values import NEVER
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.log.retention import PurgeProgress, purge
from app.resources.undelivered import DeadLetterFilter
from tests.support.builders import DELETE, add_target, event, migrated
from tests.support.mirror import Mirror
from tests.support.properties import thorough
from tests.support.scripted_target import ScriptedTarget, assert_counters_balance
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected

pytestmark = pytest.mark.promise

MARKER = "s3:ObjectRemoved:DeleteMarkerCreated"
KEYS = "ab"
ANSWERS: dict[str, Outcome] = {"refuse": Rejected("no"), "fail": Failed("not now"), "recover": DELIVERED}
AGES = (0, 1000, 2000, 3000)  # ms, of the steps of the clocks

_changes = st.tuples(st.just("change"), st.sampled_from(KEYS), st.integers(0, 9), st.sampled_from(AGES))
_deliveries = st.tuples(st.just("deliver"), st.integers(1, 3))
_purges = st.tuples(st.just("purge"), st.sampled_from([*AGES, 10_000]), st.integers(1, 4))
_others = st.sampled_from([("replay",), ("replay dead letters",), ("refuse",), ("fail",), ("recover",)])
_lives = st.lists(st.one_of(_changes, _changes, _deliveries, _purges, _others), min_size=4, max_size=40)


@dataclass
class Life:
    """A bucket with its mirror, and what happens to both."""

    database: Database
    versioned: bool
    numbers: int = 0
    stacks: dict[str, list[tuple[str, bool]]] = field(default_factory=lambda: {key: [] for key in KEYS})
    answer: Outcome = DELIVERED
    now: int = field(default_factory=now_ms)

    def __post_init__(self) -> None:
        target = add_target(self.database)
        self.mirror = Mirror(self.database, target, ScriptedTarget(lambda _: self.answer), batch=3)
        self.log = Log(self.database)
        self.progress = PurgeProgress()

    def do(self, step: tuple[object, ...]) -> None:
        """One step of the life."""
        match step:
            case ("change", str(key), int(choice), int(age)):
                one = self.change_version(key, choice) if self.versioned else self.change(key, choice)
                self.log.append([[one]])
                with self.database.writing() as connection:
                    mine = tables.events.update().where(tables.events.c.id == one.id)
                    connection.execute(mine.values(received_at=age))
            case ("deliver", int(turns)):
                self.deliver(turns)
            case ("purge", int(older_than), int(batch)):
                purge(self.database, older_than, batch_events=batch, progress=self.progress if batch % 2 else None)
            case ("replay",):
                Replays(self.database).begin(self.mirror.target, Selection())
            case ("replay dead letters",):
                DeadLetters(self.database).replay(DeadLetterFilter())
            case (str(answer),):
                self.answer = ANSWERS[answer]

    def deliver(self, turns: int = 100) -> dict[str, str]:
        self.now += 60_000  # so that a lease that a replay revoked has run out
        p = tables.parked.c
        with self.database.writing() as connection:
            connection.execute(tables.parked.update().where(p.not_before < NEVER).values(not_before=0))
        return self.mirror.deliver(turns=turns, now=self.now)

    def change(self, key: str, choice: int) -> Event:
        stack = self.stacks[key]
        if stack and choice > 5:
            stack.clear()
            return event(key, name=DELETE)
        one = event(key)
        stack[:] = [(one.sequencer, True)]
        return one

    def change_version(self, key: str, choice: int) -> Event:
        stack = self.stacks[key]
        self.numbers += 1
        if not stack or choice < 4:
            stack.append((f"v{self.numbers}", True))
            return event(key, version=f"v{self.numbers}")
        if choice == 4:
            stack.append((f"m{self.numbers}", False))
            return event(key, name=MARKER, version=f"m{self.numbers}")
        version, is_object = stack.pop(-1 if choice < 8 else 0)
        return event(key, name=DELETE if is_object else MARKER, version=version)

    def bucket(self) -> dict[str, str]:
        return {key: stack[-1][0] for key, stack in self.stacks.items() if stack and stack[-1][1]}


@pytest.fixture(scope="module")
def empty_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "outbox.db"
    migrated(f"sqlite:///{path}", partitions=1).close()
    return path


def opened(path: Path) -> Database:
    database = Database(f"sqlite:///{path}")
    # Nothing crashes here, and to wait for the disk takes most of the time.
    sa.event.listen(database.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    return database


@thorough(120)
@given(steps=_lives, versioned=st.booleans())
@pytest.mark.slow
def test_the_mirror_ends_as_the_bucket_is(empty_log: Path, steps: list[tuple[object, ...]], versioned: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = opened(Path(shutil.copy(empty_log, folder)))
        try:
            life = Life(database, versioned)
            for step in steps:
                life.do(step)
            life.answer = DELIVERED
            life.deliver()
            DeadLetters(database).replay(DeadLetterFilter())
            for _ in range(3):
                rows = life.deliver()
            assert rows == life.bucket()
            assert_counters_balance(database)
            # A dead letter keeps what is needed for it, and nothing for ever.
            for _ in range(4):
                purge(database, 10_000)
            with database.reading() as connection:
                assert connection.execute(sa.select(sa.func.count()).select_from(tables.events)).scalar_one() == 0
            Replays(database).begin(life.mirror.target, Selection())
            assert life.deliver() == life.bucket()
        finally:
            database.close()
