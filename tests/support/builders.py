"""Small events and targets for tests, with everything a test does not care about filled in."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.fields.fields import Declared
from app.config.secrets import Sealer
from app.events.model import Event
from app.outbox import log_head, schema_version, tables
from app.outbox.column_values import NEVER, NO_LIMIT
from app.outbox.declared import OPENED
from app.outbox.engine.database import Database, now_ms
from app.outbox.migration import migrate
from app.outbox.registry import Registry
from app.rules.model import Rule
from tests.support.outboxes import in_file
from tests.support.target_readers import Record

_numbers = count(1)
PUT = "s3:ObjectCreated:Put"
DELETE = "s3:ObjectRemoved:Delete"


def event(
    key: str = "a.txt", *, name: str = PUT, bucket: str = "images", version: str = "", sequencer: str | None = None
) -> Event:
    """An event unlike any other, newer than those made before it."""
    number = next(_numbers)
    sequencer = f"{0x18E9E833E5D35C00 + number:X}" if sequencer is None else sequencer
    thing: dict[str, object] = {"key": key, "sequencer": sequencer}
    if version:
        thing["versionId"] = version
    record = {
        "eventVersion": "2.0",
        "eventSource": "minio:s3",
        "eventTime": "2026-11-21T00:33:56.082Z",
        "eventName": name,
        "responseElements": {"x-amz-request-id": str(number)},
        "s3": {"bucket": {"name": bucket}, "object": thing},
    }
    text = orjson.dumps(record).decode()
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return Event(digest, name, bucket, key, version, sequencer, 1_795_000_000_000 + number, text)


def long_event(key: str, size: int, version: str = "") -> Event:
    """An event whose record has so many bytes."""
    one = event(key, version=version)
    return one._replace(record=f'{one.record[:-1]},"userMetadata":{{"note":"{"x" * (size - len(one.record) - 27)}"}}}}')


def registry(database: Database) -> Registry:
    """A registry over a database, secrets sealed with a key of the test's own."""
    return Registry(database, _Sealer([SECRET_KEY]))


class _Sealer(Sealer):
    """Leaves a webhook's address as it is, unless it has a login, as versions before 0.2 did.

    So a service with a key of its own can read a test's targets.
    """

    def seal_all(self, declaration: type[Declared] | None, values: Mapping[str, str]) -> dict[str, str]:
        endpoint = {"endpoint": values["endpoint"]} if "@" not in values.get("endpoint", "@") else {}
        return super().seal_all(declaration, values) | endpoint


SECRET_KEY = "u9Qe0xkqDqk0yXH3p2o0hQ0XcX1m8o6v6fJm1pWcQ2A="


def add_target(
    database: Database,
    name: str = "x",
    *,
    type_name: str = "webhook",
    values: Mapping[str, object] | None = None,
    bucket: str = "*",
    events: Sequence[str] = ("*",),
    **settings: object,
) -> TargetId:
    """A target with a rule; unless told otherwise a webhook that nobody calls, for every event of every bucket."""
    target = TargetId(type_name, name)
    chosen = {"endpoint": "http://127.0.0.1:9/"} if type_name == "webhook" else {}
    registry(database).put(target, chosen | dict(values or {}) | settings)
    registry(database).add_rule(
        Rule(bucket=bucket, events=tuple(events), prefix="", suffix="", target=target, rule_id="")
    )
    return target


def add_idle_targets(database: Database, count: int) -> None:
    """So many webhooks that no rule names, opened already, put into the tables at once."""
    t = tables.targets.c
    endpoint = orjson.dumps({"endpoint": "http://127.0.0.1:9/", "allow_private": "on"}).decode()
    row = {"type": "webhook", "settings": endpoint, "origin": "stored", "enabled": True, "queue_limit": NO_LIMIT}
    row |= {"created_at": now_ms(), "opening": OPENED, "opening_due_at": NEVER}
    with database.writing() as connection:
        head = log_head.change_routing(connection)
        connection.execute(tables.targets.insert(), [row | {"name": f"idle{number}"} for number in range(count)])
        for row_id in connection.execute(sa.select(t.id).where(t.name.like("idle%"))).scalars().all():
            cursor = {"target_id": row_id, "position": head.last_seq}
            places = range(head.partitions)
            connection.execute(tables.cursors.insert(), [cursor | {"partition": partition} for partition in places])


def migrated(url: str, partitions: int = 16) -> Database:
    """A database with an empty log of `partitions` partitions."""
    database = Database(url)
    file = database.url.database if database.url.drivername == "sqlite" else None
    if file and not Path(file).exists() and Path(file).parent.is_dir():
        in_file(Path(file))
    if schema_version.current(database) == schema_version.head():  # see `tests.support.outboxes`; Alembic takes longer
        with database.writing() as connection:
            log_head.create(connection, partitions)
    else:
        migrate(database, partitions=partitions)
    return database


def records(*events: Event) -> list[Record]:
    return [orjson.loads(one.record) for one in events]


def body(*events: Event) -> bytes:
    return f'{{"Records":[{",".join(one.record for one in events)}]}}'.encode()


def some(bucket: str, count: int, *, keys: int = 10, first: int = 0) -> list[Event]:
    return [event(f"k{number % keys}", bucket=bucket) for number in range(first, first + count)]
