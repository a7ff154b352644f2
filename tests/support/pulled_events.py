"""Messages for sources, what the log has of them, and the outbox of a service that pulls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import sqlalchemy as sa

from app.config.arn import SourceId
from app.config.secrets import Sealer
from app.config.settings import Settings
from app.events.limits import Limits
from app.events.model import Event
from app.events.parsing import Message, read_message
from app.outbox import tables
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database, DatabaseUnavailable, now_ms
from app.outbox.sources.intake import RejectedMessages, SourceIntake
from app.outbox.sources.registry import SourceRegistry
from app.outbox.sources.rows import SourceLeases, StoredSource, find_source
from tests import services
from tests.services import until
from tests.support.builders import SECRET_KEY, body, event
from workers.sources.base import Source
from workers.sources.runner import SourceRunner

KEYS = 7


def url(database: Database) -> str:
    """The address of the database, as a service gets it."""
    return database.url.render_as_string(hide_password=False)


def pull(source: Source, count: int, most: int = 1000) -> list[Message]:
    """Pull until there are so many messages."""
    pulled: list[Message] = []

    def enough() -> bool:
        pulled.extend(source.pull(most, 0.5))
        return len(pulled) >= count

    until(enough, what=f"{count} messages")
    return pulled


def numbered(count: int, *, keys: int = KEYS, share: int = 0) -> list[Event]:
    """Events of some objects in turn, as they are recorded; those of one share have keys of their own."""
    made = [Message(body(event(f"{share}/{number % keys}.txt"))) for number in range(count)]
    return [one for message in made for one in read_message(message, Limits(), None).events]


def reject(database: Database, *bodies: bytes) -> None:
    """Have the source kafka:minio reject these messages, as a worker does."""
    clock = DatabaseClock(database)
    with database.reading() as connection:
        stored = find_source(connection, SourceId("kafka", "minio"))
    leases = SourceLeases(database, 60_000)
    lease = leases.claim(stored, clock())
    assert lease is not None
    read = [read_message(Message(text, "0", str(place)), Limits(), None) for place, text in enumerate(bodies, 1)]
    list(SourceIntake(database, clock, 60_000).record(lease, read, most=100, most_bytes=1 << 20))
    leases.release(lease)


def messages(events: Sequence[Event]) -> list[bytes]:
    """One message for each event."""
    return [body(one) for one in events]


def recorded(database: Database) -> list[str]:
    """The ids of the log's events, in the order of the log."""
    e = tables.events.c
    with database.reading() as connection:
        return list(connection.execute(sa.select(e.id).order_by(e.seq)).scalars())


def count_recorded(database: Database) -> int:
    """How many events the log has."""
    with database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(tables.events)).scalar_one())


def by_key(events: Sequence[Event]) -> dict[str, list[str]]:
    """The ids of each object's events, in order."""
    found: dict[str, list[str]] = {}
    for one in events:
        found.setdefault(one.key, []).append(one.id)
    return found


def recorded_by_key(database: Database) -> dict[str, list[str]]:
    """The same of the log."""
    e, found = tables.events.c, dict[str, list[str]]()
    with database.reading() as connection:
        for row in connection.execute(sa.select(e.id, e.key).order_by(e.seq)):
            found.setdefault(row.key, []).append(row.id)
    return found


class Sources:
    """The sources of an outbox."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.registry = SourceRegistry(database, Sealer([SECRET_KEY]))
        self.rejected = RejectedMessages(database)

    def put(self, type_name: str, values: Mapping[str, Any], name: str = "x") -> SourceId:
        source = SourceId(type_name, name)
        self.registry.put(source, values)
        return source

    def stored(self, source: SourceId) -> StoredSource:
        return self.registry.source(source)

    def state(self, source: SourceId) -> str:
        return self.stored(source).state(now_ms())


@contextmanager
def running(database: Database, broker_url: str = "redis://127.0.0.1:9/0", **settings: str) -> Iterator[SourceRunner]:
    """What a worker of the role `sources` runs, in this process."""
    given = {
        "BUCKETWIRE_DATA_DIR": str(services.new_folder("var")),
        "BUCKETWIRE_DATABASE_URL": url(database),
        "BUCKETWIRE_BROKER_URL": broker_url,
        "BUCKETWIRE_SECRET_KEYS": SECRET_KEY,
        **{f"BUCKETWIRE_{name.upper()}": value for name, value in settings.items()},
    }
    runner = SourceRunner(Settings.from_environ(given))
    runner.start()
    try:
        yield runner
    finally:
        runner.request_stop()
        runner.join(60)
        assert not runner.is_alive()


def check_minio(database: Database, type_name: str, values: Mapping[str, Any], target: str, **settings: str) -> None:
    """Have a real MinIO put and delete an object, whose target of its own writes to a queue; both are recorded."""
    sources, key = Sources(database), "a b/ü.txt"
    source = sources.put(type_name, values)
    environ = {
        f"MINIO_NOTIFY_{target.upper()}_{name}_BW": value for name, value in {"ENABLE": "on", **settings}.items()
    }
    with services.minio(extra_env=environ) as minio, closing(minio.boto3()) as s3, running(database):
        s3.create_bucket(Bucket="images")
        minio.mc("event", "add", "m/images", f"arn:minio:sqs::BW:{target}", "--event", "put,delete")
        s3.put_object(Bucket="images", Key=key, Body=b"x")
        until(lambda: len(recorded(database)) == 1, what="the put")
        s3.delete_object(Bucket="images", Key=key)
        until(lambda: len(recorded(database)) == 2, what="the delete")
    e = tables.events.c
    with database.reading() as connection:
        rows = connection.execute(sa.select(e.key, e.name).order_by(e.seq)).all()
    assert list(map(tuple, rows)) == [(key, "s3:ObjectCreated:Put"), (key, "s3:ObjectRemoved:Delete")]
    assert (sources.stored(source).messages, sources.stored(source).rejected) == (2, 0)


def check_failover(
    database: Database,
    type_name: str,
    values: Mapping[str, Any],
    send: Callable[[Sequence[bytes]], None],
    fail_over: Callable[[], None],
) -> StoredSource:
    """Have a queue's servers fail over while a source pulls: all is recorded once and in order, and nothing is lost."""
    sources, events = Sources(database), numbered(600)
    source = sources.put(type_name, {**values, "batch_size": "5"})
    send(messages(events[:400]))
    with running(database):
        until(lambda: len(recorded(database)) > 20, 60, what="progress")
        fail_over()
        send(messages(events[400:]))
        wait_for(database, events, 120)
        until(lambda: sources.stored(source).lag == 0, 60, what="no lag")
        until(lambda: sources.state(source) == "running", 60, what="a running source")
    assert recorded(database) == [one.id for one in events]
    stored = sources.stored(source)
    assert (stored.recorded, stored.rejected) == (len(events), 0)
    return stored


def wait_for(database: Database, events: Sequence[Event], seconds: float = 30) -> None:
    """Return when the log has all of these events; the database may be away meanwhile."""
    wanted = {one.id for one in events}

    def complete() -> bool:
        try:
            return wanted <= set(recorded(database))
        except DatabaseUnavailable:
            return False

    until(complete, seconds, what=f"{len(wanted)} events in the log")
