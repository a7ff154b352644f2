"""Targets and rules: what is stored, how it changes, and how every process learns of a change.

Each change locks the log's head and raises its version in the same transaction. So an append after the commit
follows the new rules, one before it the old ones, and there is nothing between.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.secrets import Sealer, key_file
from app.config.settings import Settings
from app.config.target_settings import BadSettings, load, texts
from app.config.targets.base import TargetSettings
from app.outbox import tables
from app.outbox.delivery.reasons import clean_reason
from app.outbox.engine.database import Database, now_ms
from app.outbox.engine.locks import lock_cursors
from app.outbox.markers import NO_LIMIT
from app.rules.model import Rule, check


class UnknownTarget(LookupError):
    """No target of that type and name is configured."""

    def __init__(self, target: TargetId) -> None:
        super().__init__(f"there is no target {target}; `bucketwire target ls` shows those there are")
        self.target = target


class TargetInUse(Exception):
    """The target cannot be removed without losing something; the message says what."""


class ReadOnlyTarget(Exception):
    """The target comes from the environment and can only be changed there."""


@dataclass(frozen=True, slots=True)
class StoredTarget:
    """A target as it stands in the table; `values` are its settings as texts, secrets still sealed."""

    row_id: int
    target: TargetId
    values: Mapping[str, str]
    origin: str
    problem: str
    enabled: bool
    paused: bool
    breaker: str
    failures: int
    resume_at: int
    reason: str

    @property
    def standing(self) -> tuple[str, str]:
        """How the target stands, `running`, `unavailable`, `paused`, `disabled` or `broken`, and why."""
        if self.problem:
            return "broken", self.problem
        if not self.enabled:
            return "disabled", self.reason
        if self.paused:
            return "paused", self.reason
        if self.breaker != "closed":
            return "unavailable", self.reason
        return "running", ""


@dataclass(frozen=True, slots=True)
class StoredRule:
    """A rule with the number by which it can be removed."""

    row_id: int
    rule: Rule


class _OpenTransaction:
    """A transaction that is open already, in the place of a database."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def reading(self) -> Any:
        """The transaction's own connection: what it changed is seen."""
        return nullcontext(self._connection)

    def writing(self) -> Any:
        """The transaction itself; its end is not that of this block."""
        return nullcontext(self._connection)


class Registry:
    """Read and change targets and rules."""

    def __init__(self, database: "Database | _OpenTransaction", sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    @contextmanager
    def at_once(self) -> Iterator["Registry"]:
        """A registry whose changes are one transaction: all of them hold, or none if an exception leaves the block.

        What it reads is exact, nobody else changes targets or rules meanwhile, and no event is recorded: be quick.
        """
        with self._database.writing() as connection:
            _change(connection)
            yield Registry(_OpenTransaction(connection), self._sealer)

    # Targets

    def targets(self) -> list[StoredTarget]:
        """Every target, in order of type and name."""
        t = tables.targets.c
        with self._database.reading() as connection:
            return [_stored(row) for row in connection.execute(sa.select(tables.targets).order_by(t.type, t.name))]

    def target(self, target: TargetId) -> StoredTarget:
        """One target. Raises `UnknownTarget`."""
        with self._database.reading() as connection:
            return _stored(_find(connection, target))

    def settings(self, stored: StoredTarget) -> TargetSettings:
        """A target's settings, secrets open. Raises `BadSettings`."""
        return load(stored.target.type, self.texts(stored))

    def texts(self, stored: StoredTarget) -> dict[str, str]:
        """A target's settings as texts, secrets open. Raises `BadSettings`."""
        return self._sealer.unseal_all(stored.target.type, stored.values)

    def put(self, target: TargetId, values: Mapping[str, object], *, origin: str = "stored", problem: str = "") -> None:
        """Create a target or replace its settings. Raises `BadSettings` or `ReadOnlyTarget`; then nothing changed.

        With a `problem` the settings are kept although they cannot be used: the target's events wait.
        """
        columns: dict[str, Any] = {"origin": origin, "problem": problem}
        if not problem:
            settings = load(target.type, values)
            limit = settings.effective_queue_limit
            columns |= {
                "enabled": settings.enable,
                "queue_limit": NO_LIMIT if limit is None else limit,
                "rejects": settings.queue_full == "reject",
            }
        stored = {key: str(value) for key, value in values.items()} if problem else texts(target.type, values)
        columns["settings"] = orjson.dumps(self._sealer.seal_all(target.type, stored)).decode()
        with self._database.writing() as connection:
            last_seq, partitions = _change(connection)
            t = tables.targets.c
            known = connection.execute(
                sa.select(t.id, t.origin).where(t.type == target.type, t.name == target.name)
            ).one_or_none()
            if known is None:
                new = {"enabled": True, "queue_limit": NO_LIMIT, "created_at": now_ms()} | columns
                made = connection.execute(tables.targets.insert().values(type=target.type, name=target.name, **new))
                _begin(connection, made.inserted_primary_key[0], last_seq, partitions)
                return
            if known.origin == "environment" != origin:
                raise ReadOnlyTarget(f"{target} is set by MINIO_NOTIFY_… variables; change it there")
            # New settings deserve a new try at once, whatever the breaker learned of the old ones.
            connection.execute(
                tables.targets.update()
                .where(t.id == known.id)
                .values(breaker="closed", failures=0, resume_at=0, **columns)
            )

    def reseal(self) -> int:
        """Seal every target's secrets with the newest key; says of how many targets.

        Raises `BadSettings` where one was sealed with a key that is gone; then nothing changed.
        """
        with self._database.writing() as connection:
            rows = connection.execute(sa.select(tables.targets).with_for_update()).all()
            for row in rows:
                stored = _stored(row)
                sealed = self._sealer.seal_all(stored.target, self._sealer.unseal_all(stored.target, stored.values))
                chosen = tables.targets.update().where(tables.targets.c.id == row.id)
                connection.execute(chosen.values(settings=orjson.dumps(sealed).decode()))
        return len(rows)

    def sync_environment(self, found: Mapping[TargetId, Mapping[str, str]], problems: Mapping[TargetId, str]) -> None:
        """Make the targets that the environment names those of the table, each for itself.

        One that the environment no longer names is disabled, not deleted: its events and counters stay.
        """
        stored = {entry.target: entry for entry in self.targets()}
        for target, values in found.items():
            problem = problems.get(target, "")
            entry = stored.get(target)
            if entry and entry.origin == "environment" and entry.enabled and entry.problem == problem:
                try:
                    if dict(self._sealer.unseal_all(target.type, entry.values)) == dict(values):
                        continue
                except BadSettings:
                    pass  # sealed with a key that is gone: the environment has the secret anew
            self.put(target, values, origin="environment", problem=problem)
        for target, entry in stored.items():
            if entry.origin == "environment" and target not in found and entry.enabled:
                self._update(target, enabled=False, reason="the environment no longer names it")

    def remove(self, target: TargetId, *, force: bool = False) -> list[str]:
        """Delete a target with its cursors, parked events and dead letters; says what was lost with it.

        Raises `TargetInUse` unless `force` when rules name it or events wait for it; `ReadOnlyTarget`.
        """
        with self._database.writing() as connection:
            _change(connection)
            row = _find(connection, target)
            lock_cursors(connection, row.id)  # before parked events and dead letters, as a settlement does
            if row.origin == "environment" and row.enabled:
                raise ReadOnlyTarget(f"{target} is set by MINIO_NOTIFY_… variables; remove them first")
            lost = _uses(connection, row)
            if lost and not force:
                raise TargetInUse(f"{target} is in use: {', '.join(lost)}; remove it with force to lose them")
            # The cursors first: a worker that settles holds theirs, and may be about to park events.
            for table in (
                tables.rules,
                tables.cursors,
                tables.parked,
                tables.redeliveries,
                tables.dead_letters,
                tables.replays,
            ):
                connection.execute(table.delete().where(table.c.target_id == row.id))
            connection.execute(tables.targets.delete().where(tables.targets.c.id == row.id))
        return lost

    def pause(self, target: TargetId, reason: str) -> None:
        """Deliver nothing to it until it is resumed; its events wait."""
        self._update(target, paused=True, reason=clean_reason(reason))

    def resume(self, target: TargetId) -> None:
        """End a pause, and an open breaker's wait with it."""
        self._update(target, paused=False, reason="", breaker="closed", failures=0, resume_at=0)

    def _update(self, target: TargetId, **values: Any) -> None:
        with self._database.writing() as connection:
            _change(connection)
            row = _find(connection, target)
            connection.execute(tables.targets.update().where(tables.targets.c.id == row.id).values(**values))

    # What workers learn of a target

    def unavailable(self, row_id: int, reason: str, resume_at: int, *, probing: bool, pause: bool) -> bool:
        """Open the breaker until `resume_at`, or pause the target; says whether this is what opened it.

        Partitions that fail together count as one failure: only the first opens a breaker, only a probe keeps it open.
        """
        t = tables.targets.c
        with self._database.writing() as connection:
            changed = connection.execute(
                tables.targets.update()
                .where(t.id == row_id, *([] if probing else [t.breaker == "closed"]))
                .values(
                    breaker="open",
                    failures=t.failures + 1,
                    resume_at=resume_at,
                    reason=clean_reason(reason),
                    **({"paused": True} if pause else {}),
                )
            )
        return bool(changed.rowcount) and not probing

    def failures(self, row_id: int) -> int:
        """Return how many times in a row the target was unavailable; 0 if it was removed."""
        with self._database.reading() as connection:
            query = sa.select(tables.targets.c.failures).where(tables.targets.c.id == row_id)
            return int(connection.execute(query).scalar_one_or_none() or 0)

    def available(self, row_id: int) -> None:
        """Close the breaker: the target took something."""
        t = tables.targets.c
        with self._database.writing() as connection:
            connection.execute(
                tables.targets.update()
                .where(t.id == row_id, t.breaker != "closed")
                .values(breaker="closed", failures=0, resume_at=0, reason="")
            )

    # Rules

    def rules(self, bucket: str | None = None) -> list[StoredRule]:
        """Every rule, or those of one bucket, oldest first."""
        with self._database.reading() as connection:
            return _rules(connection, bucket)

    def add_rule(self, rule: Rule) -> int:
        """Store a rule and say its number, also if it was there. Raises `BadRules`, `UnknownTarget`."""
        check([rule])
        for stored in self.rules(rule.bucket):
            if stored.rule == rule:
                return stored.row_id
        with self._database.writing() as connection:
            _change(connection)  # of two that add the same rule at once the second sees the first
            for stored in _rules(connection, rule.bucket):
                if stored.rule == rule:
                    return stored.row_id
            made = connection.execute(tables.rules.insert().values(**_rule_row(connection, rule)))
            return int(made.inserted_primary_key[0])

    def add_rules(self, rules: Sequence[Rule]) -> None:
        """Store rules of which none is there yet. Raises `BadRules`, `UnknownTarget`; then nothing changed."""
        check(rules)
        with self._database.writing() as connection:
            _change(connection)
            rows = [_rule_row(connection, rule) for rule in rules]
            if rows:
                connection.execute(tables.rules.insert(), rows)

    def remove_rules(self, row_ids: Sequence[int]) -> int:
        """Remove rules by number; says how many there were."""
        with self._database.writing() as connection:
            _change(connection)
            return int(connection.execute(tables.rules.delete().where(tables.rules.c.id.in_(row_ids))).rowcount)

    def replace_rules(self, bucket: str, rules: Sequence[Rule]) -> None:
        """Make these the rules of a bucket, all at once. Raises `BadRules`, `UnknownTarget`; then nothing changed."""
        check(rules)
        with self._database.writing() as connection:
            _change(connection)
            rows = [_rule_row(connection, rule) for rule in rules]
            connection.execute(tables.rules.delete().where(tables.rules.c.bucket == bucket))
            if rows:
                connection.execute(tables.rules.insert(), rows)


def open_registry(database: Database, settings: Settings) -> Registry:
    """The registry of a service with these settings; without secret keys it makes one in the service's folder.

    BUCKETWIRE_SECRET_KEYS is looked at again for a key that is not known, as it may refer to a file.
    """
    return Registry(database, Sealer(settings.secret_keys or [key_file(settings.key_path)], _keys_by_now))


def _keys_by_now() -> Sequence[str]:
    try:
        return Settings.from_environ(os.environ).secret_keys
    except BadSettings:  # the file is being replaced
        return ()


def enabled_targets(database: Database) -> list[TargetId]:
    """The targets that a worker may have to serve, paused ones included."""
    t = tables.targets.c
    with database.reading() as connection:
        return [TargetId(row.type, row.name) for row in connection.execute(sa.select(t.type, t.name).where(t.enabled))]


def _change(connection: sa.Connection) -> tuple[int, int]:
    head = tables.log_head.c
    connection.execute(tables.log_head.update().values(version=head.version + 1))
    row = connection.execute(sa.select(head.last_seq, head.partitions)).one()
    return row.last_seq, row.partitions


def _begin(connection: sa.Connection, row_id: int, last_seq: int, partitions: int) -> None:
    cursors = [{"target_id": row_id, "partition": partition, "position": last_seq} for partition in range(partitions)]
    connection.execute(tables.cursors.insert(), cursors)


def _find(connection: sa.Connection, target: TargetId) -> Any:
    t = tables.targets.c
    row = connection.execute(
        sa.select(tables.targets).where(t.type == target.type, t.name == target.name)
    ).one_or_none()
    if row is None:
        raise UnknownTarget(target)
    return row


def _uses(connection: sa.Connection, row: Any) -> list[str]:
    """What would be lost with a target, each a sentence."""
    r, c, d = tables.rules.c, tables.cursors.c, tables.dead_letters.c
    rules = connection.execute(
        sa.select(sa.func.count()).select_from(tables.rules).where(r.target_id == row.id)
    ).scalar_one()
    dead = connection.execute(
        sa.select(sa.func.count()).select_from(tables.dead_letters).where(d.target_id == row.id)
    ).scalar_one()
    done = connection.execute(
        sa.select(sa.func.coalesce(sa.func.sum(c.delivered + c.superseded - c.replayed), 0)).where(
            c.target_id == row.id
        )
    ).scalar_one()
    undelivered = row.recorded - done - dead - row.purged
    return [
        text
        for count, text in (
            (rules, f"{rules} rule(s) name it"),
            (undelivered, f"{undelivered} event(s) are not delivered yet"),
            (dead, f"{dead} dead letter(s) belong to it"),
        )
        if count
    ]


def _rules(connection: sa.Connection, bucket: str | None) -> list[StoredRule]:
    """Every rule, or those of one bucket, oldest first."""
    r, t = tables.rules.c, tables.targets.c
    query = sa.select(tables.rules, t.type, t.name).join_from(tables.rules, tables.targets).order_by(r.id)
    if bucket is not None:
        query = query.where(r.bucket == bucket)
    return [
        StoredRule(
            row.id,
            Rule(
                bucket=row.bucket,
                events=tuple(orjson.loads(row.events)),
                prefix=row.prefix,
                suffix=row.suffix,
                target=TargetId(row.type, row.name),
                rule_id=row.rule_id,
            ),
        )
        for row in connection.execute(query)
    ]


def _rule_row(connection: sa.Connection, rule: Rule) -> dict[str, Any]:
    return {
        "bucket": rule.bucket,
        "rule_id": rule.rule_id,
        "events": orjson.dumps(rule.events).decode(),
        "prefix": rule.prefix,
        "suffix": rule.suffix,
        "target_id": _find(connection, rule.target).id,
    }


def _stored(row: Any) -> StoredTarget:
    return StoredTarget(
        row_id=row.id,
        target=TargetId(row.type, row.name),
        values=orjson.loads(row.settings),
        origin=row.origin,
        problem=row.problem,
        enabled=bool(row.enabled),
        paused=bool(row.paused),
        breaker=row.breaker,
        failures=row.failures,
        resume_at=row.resume_at,
        reason=row.reason,
    )
