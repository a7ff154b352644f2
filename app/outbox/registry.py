"""Store and change targets, rules and the settings of the service, and let every process notice a change.

Each change locks the log's head and raises its version in the same transaction. An append after the commit therefore
uses the new rules, and an append before it uses the old ones.
"""

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.declared_types import settings_type
from app.config.errors import BadValue
from app.config.secrets import Sealer, key_file
from app.config.settings import Settings
from app.config.target_settings import BadSettings, changed_lines, load, texts
from app.config.targets.base import TargetSettings
from app.outbox import audit, log_head, tables
from app.outbox.admin.counters import read_counters
from app.outbox.column_values import NO_LIMIT, clean_reason
from app.outbox.declared import (
    NOT_NAMED,
    OPENING_DUE,
    SealedSettings,
    StoredRule,
    StoredTarget,
    UnknownTarget,
    audit_facts,
    find_target,
    read_row,
    read_rows,
    read_rules,
    rule_to_row,
    stored_target,
)
from app.outbox.engine.database import Database, OpenTransaction, inserted_id, now_ms
from app.outbox.engine.many_rows import chunks, lock_cursors, repeated_after_deadlock
from app.outbox.policies import REMOVAL
from app.outbox.schema_version import OLDEST_CODE
from app.quantities import count_noun
from app.rules.matching import check_expressions
from app.rules.model import EVERY_BUCKET, Rule, check

if TYPE_CHECKING:
    from app.outbox.buckets import BucketRegistry
    from app.outbox.sources.registry import SourceRegistry


_CLOSED = {"breaker": "closed", "failures": 0, "resume_at": 0}
_BEING_REMOVED = "it is being removed; if that was stopped, remove it once more"


class TargetInUse(Exception):
    """Removing the target would lose data; the message names it."""


class ReadOnlyTarget(Exception):
    """The target is configured in the environment and can only be changed there."""


class Registry(SealedSettings[TargetSettings]):
    """Read and change targets and rules."""

    def __init__(self, database: Database | OpenTransaction, sealer: Sealer) -> None:
        super().__init__(sealer, tables.targets, settings_type)
        self._database = database
        self._renewed: set[int] = set()  # row ids of targets that were set or resumed in an open transaction

    @contextmanager
    def at_once(self) -> Iterator["Registry"]:
        """Yield a registry whose changes are one transaction; an exception that leaves the block rolls it back.

        Reads are exact: until the block ends, no other process can change targets or rules, or record events. Keep the
        block short.
        """
        with self._database.writing() as connection:
            log_head.change_routing(connection)
            locked = Registry(OpenTransaction(connection), self._sealer)
            yield locked
        for row_id in locked._renewed:
            self._try_all_now(row_id)

    @property
    def sources(self) -> "SourceRegistry":
        """The sources; their changes too are of the transaction of `at_once`."""
        from app.outbox.sources.registry import SourceRegistry  # noqa: PLC0415 - few commands need it

        return SourceRegistry(self._database, self._sealer)

    @property
    def buckets(self) -> "BucketRegistry":
        """The settings of buckets; their changes too are of the transaction of `at_once`."""
        from app.outbox.buckets import BucketRegistry  # noqa: PLC0415 - as above

        return BucketRegistry(self._database, self._sealer)

    # Targets

    def targets(self) -> list[StoredTarget]:
        """Return every target, sorted by type and name."""
        with self._database.reading() as connection:
            return [stored_target(row) for row in read_rows(connection, tables.targets)]

    def some(self, targets: Collection[TargetId]) -> list[StoredTarget]:
        """Return those of the targets that exist."""
        t, names = tables.targets.c, defaultdict[str, list[str]](list)
        for target in targets:
            names[target.type].append(target.name)
        with self._database.reading() as connection:
            return [
                stored_target(row)
                for type_name, of_type in names.items()
                for chunk in chunks(of_type)
                for row in connection.execute(sa.select(tables.targets).where(t.type == type_name, t.name.in_(chunk)))
            ]

    def target(self, target: TargetId) -> StoredTarget:
        """Return one target. Raises `UnknownTarget`."""
        with self._database.reading() as connection:
            return find_target(connection, target)

    def existing(self, row_ids: Collection[int]) -> set[int]:
        """Return those of the row ids that are a target's."""
        t = tables.targets.c
        with self._database.reading() as connection:
            return set(connection.execute(sa.select(t.id).where(t.id.in_(row_ids))).scalars())

    @repeated_after_deadlock
    def put(self, target: TargetId, values: Mapping[str, object], *, origin: str = "stored", problem: str = "") -> None:
        """Create a target or replace its settings. Raises `BadSettings` or `ReadOnlyTarget`; then nothing has changed.

        One that the environment no longer names is taken over, with its events and counters.
        Its retried events are tried at once. Settings without effect are stored too: whether they are refused is the
        caller's decision.
        With a `problem`, the settings are stored although they cannot be used, and the target's events wait.
        """
        from app.outbox.delivery import transitions  # noqa: PLC0415 - slow, and few commands need it

        columns: dict[str, Any] = {"origin": origin, "problem": problem}
        if not problem:
            settings = load(target.type, values, lenient=True)
            limit = settings.effective_queue_limit
            columns |= {
                "enabled": settings.enable,
                "queue_limit": NO_LIMIT if limit is None else limit,
                "rejects": settings.queue_full == "reject",
            }
        stored = {key: str(value) for key, value in values.items()} if problem else texts(target.type, values)
        columns["settings"] = self.seal(target.type, stored)
        with self._database.writing() as connection:
            head = log_head.change_routing(connection)
            t = tables.targets.c
            known = read_row(connection, tables.targets, target)
            before = self.unseal_to_compare(known, target)
            details = {"origin": origin, "settings": changed_lines(target.type, before, stored)}
            if known is None:
                new = {"enabled": True, "queue_limit": NO_LIMIT, "created_at": now_ms()} | columns
                inserted = connection.execute(tables.targets.insert().values(type=target.type, name=target.name, **new))
                transitions.begin_target(connection, inserted_id(inserted), head)
                audit.record(connection, "target.create", _resource(target), details)
                return
            if origin != "environment" and stored_target(known).is_read_only:
                raise ReadOnlyTarget(f"{target} is set by MINIO_NOTIFY_… variables; change it there")
            # Try new settings at once: the breaker's state applies to the old ones, and so does what opening them said.
            columns |= {"breaker": "closed", "failures": 0, "resume_at": 0, "revision": t.revision + 1}
            columns |= {"opening": OPENING_DUE, "opening_reason": "", "opening_at": 0}
            columns |= {"opening_due_at": 0, "opening_tries": 0}
            columns |= {"reason": ""} if known.reason == NOT_NAMED else {}
            connection.execute(tables.targets.update().where(t.id == known.id).values(**columns))
            audit.record(connection, "target.change", _resource(target), details)
        self._try_all_now(known.id)

    @repeated_after_deadlock
    def reseal(self) -> dict[str, int]:
        """Seal the secrets of all targets, sources and buckets with the newest key; return how many there are of each.

        Raises `BadSettings` if a secret was sealed with a key that is not known any more; then nothing has changed.
        """
        from app.config.declared_types import source_type  # noqa: PLC0415 - few commands need it

        sources = SealedSettings(self._sealer, tables.sources, source_type)
        with self._database.writing() as connection:
            numbers = {
                "targets": self.seal_again(connection),
                "sources": sources.seal_again(connection),
                "buckets": self.buckets.seal_again(connection),
            }
            audit.record(connection, "secrets.reseal", "secrets:targets", numbers)
        return numbers

    def sync_environment(self, found: Mapping[TargetId, Mapping[str, str]], problems: Mapping[TargetId, str]) -> None:
        """Store the targets that the environment configures, each in a transaction of its own.

        Targets that the environment no longer configures are disabled, not deleted: their events and counters stay.
        """
        stored = {entry.target: entry for entry in self.targets()}
        for target, values in found.items():
            problem = problems.get(target, "")
            entry = stored.get(target)
            if entry and entry.origin == "environment" and entry.enabled and entry.problem == problem:
                try:
                    if self.texts(entry) == dict(values):
                        continue
                except BadSettings:
                    pass  # sealed with a key that is not known any more: store the environment's secret again
            self.put(target, values, origin="environment", problem=problem)
        for target, entry in stored.items():
            if entry.is_read_only and target not in found:
                self._update(target, "disable", enabled=False, reason=NOT_NAMED)

    @repeated_after_deadlock
    def remove(self, target: TargetId, *, force: bool = False) -> list[str]:
        """Delete a target with its cursors, parked events and dead letters, and return what was lost, as phrases.

        A target with many of these is first disabled, and no rule names it any more; then they are purged in batches,
        so that nothing else waits for them; at last the target goes. If this is stopped in between, the target stays
        disabled, its counters balance, and removing it once more does the rest. A worker that delivers to it finds out
        when it renews its lease or settles, and sends its events until then.

        Raises `ReadOnlyTarget`, and without `force` `TargetInUse` if rules name the target or it has undelivered events
        or dead letters.
        """
        from app.outbox.delivery import transitions  # noqa: PLC0415 - slow, and few commands need it

        lost: list[str] | None = None
        row_id = 0  # of the target that is meant: later another one may have its name
        while True:
            with self._database.writing() as connection:
                log_head.change_routing(connection)
                try:
                    stored = find_target(connection, target)
                except UnknownTarget:
                    if lost is None:
                        raise
                    return lost  # somebody else has removed it meanwhile
                if lost is not None and stored.row_id != row_id:
                    return lost
                row_id = stored.row_id
                lock_cursors(connection, stored.row_id)  # before parked events and dead letters, as a settlement does
                if stored.origin == "environment" and stored.enabled:
                    raise ReadOnlyTarget(f"{target} is set by MINIO_NOTIFY_… variables; remove them first")
                if lost is None:
                    lost = _losses(connection, stored.row_id)
                    if lost and not force:
                        raise TargetInUse(
                            f"{target} is in use: {', '.join(lost)}; --force (`force=true`) removes it with them"
                        )
                if not transitions.has_more(connection, stored.row_id, REMOVAL.batch_events):
                    transitions.remove_target(connection, stored.row_id)
                    for table in (tables.rules, tables.redeliveries, tables.replays, tables.notices):
                        connection.execute(table.delete().where(table.c.target_id == stored.row_id))
                    connection.execute(tables.targets.delete().where(tables.targets.c.id == stored.row_id))
                    audit.record(connection, "target.remove", _resource(target), {"lost": lost})
                    return lost
                _begin_removal(connection, stored)
            purged = REMOVAL.batch_events
            while purged == REMOVAL.batch_events:
                with self._database.writing() as connection:
                    purged = transitions.purge_any(connection, row_id, REMOVAL.batch_events)

    def pause(self, target: TargetId, reason: str) -> None:
        """Stop deliveries to a target until it is resumed; its events wait. Raises `UnknownTarget`.

        No batch is begun half a second later. One that is being delivered goes on until its lease may not be used any
        more (`lease_max_work`): to revoke the lease would have it delivered again.
        """
        self._update(target, "pause", paused=True, reason=clean_reason(reason), **_CLOSED)

    def resume(self, target: TargetId) -> None:
        """End a pause, close the circuit breaker, and have retried events tried at once. Raises `UnknownTarget`.

        Failed attempts in a row are counted again.
        """
        again = {"revision": tables.targets.c.revision + 1}  # of which the mark of failures is made
        self._try_all_now(self._update(target, "resume", paused=False, reason="", **_CLOSED, **again))

    @repeated_after_deadlock
    def acknowledge_discards(self, target: TargetId, discarded: int) -> None:
        """Note that an operator knows of the first so many events that were discarded for a target.

        Those that are discarded later are reported again. Raises `UnknownTarget`, or `BadValue` for more than there
        were.
        """
        t = tables.targets
        with self._database.writing() as connection:
            stored = find_target(connection, target)
            total = connection.execute(sa.select(t.c.discarded).where(t.c.id == stored.row_id)).scalar_one()
            if discarded > total:
                raise BadValue(
                    f"{discarded:,} events are more than the {total:,} discarded so far", "give a total of them"
                )
            change = t.update().where(t.c.id == stored.row_id, t.c.acknowledged < discarded)
            if connection.execute(change.values(acknowledged=discarded)).rowcount:
                audit.record(connection, "target.acknowledge", _resource(target), {"discarded": discarded})

    def _try_all_now(self, row_id: int) -> None:
        """Have a target's retried events tried at once, after the commit: some of many at a time, while intake goes on.

        If this is stopped in between, the others keep their times, and resuming the target once more does the rest.
        """
        from app.outbox.delivery.transitions import try_all_now  # noqa: PLC0415 - slow, and few commands need it

        if isinstance(self._database, OpenTransaction):
            self._renewed.add(row_id)
        else:
            try_all_now(self._database, row_id)

    @repeated_after_deadlock
    def _update(self, target: TargetId, action: str, **values: Any) -> int:
        with self._database.writing() as connection:
            log_head.change_routing(connection)
            row_id = find_target(connection, target).row_id
            connection.execute(tables.targets.update().where(tables.targets.c.id == row_id).values(**values))
            details = {"reason": values["reason"]} if values["reason"] else {}
            audit.record(connection, f"target.{action}", _resource(target), details)
        return row_id

    # The section `api`

    def api_settings(self) -> dict[str, str]:
        """Return the stored texts of the section `api`."""
        with self._database.reading() as connection:
            return read_api_settings(connection)

    @repeated_after_deadlock
    def put_api_settings(self, texts: Mapping[str, str]) -> None:
        """Set keys of the section `api`, as `api_texts` returns them."""
        with self._database.writing() as connection:
            write_api_settings(connection, texts)
            audit.record(connection, "service.change", "service:api", {"settings": dict(texts)})

    # Rules

    def rules(self, bucket: str | None = None) -> list[StoredRule]:
        """Return every rule, or those of one bucket, oldest first."""
        with self._database.reading() as connection:
            return read_rules(connection, bucket)

    @repeated_after_deadlock
    def add_rule(self, rule: Rule) -> int:
        """Store a rule unless it exists, and return its number. Raises `BadRules`, `UnknownTarget`."""
        check([rule])
        for stored in self.rules(rule.bucket):
            if stored.rule == rule:
                return stored.row_id
        with self._database.writing() as connection:
            # If two processes add the same rule at once, the second one sees the first one's.
            log_head.change_routing(connection)
            for stored in read_rules(connection, rule.bucket):
                if stored.rule == rule:
                    return stored.row_id
            number = inserted_id(connection.execute(tables.rules.insert().values(**rule_to_row(connection, rule))))
            _check_expressions(connection, [rule])
            _record_rules(connection, "rule.add", [rule])
            return number

    @repeated_after_deadlock
    def add_rules(self, rules: Sequence[Rule]) -> None:
        """Store rules that do not exist yet. Raises `BadRules`, `UnknownTarget`; then nothing has changed."""
        check(rules)
        with self._database.writing() as connection:
            log_head.change_routing(connection)
            rows = [rule_to_row(connection, rule) for rule in rules]
            if rows:
                connection.execute(tables.rules.insert(), rows)
                _record_rules(connection, "rule.add", rules)
            _check_expressions(connection, rules)

    @repeated_after_deadlock
    def remove_rules(self, row_ids: Collection[int]) -> list[int]:
        """Remove rules by number, all in one transaction, and return the numbers of those that existed."""
        with self._database.writing() as connection:
            log_head.change_routing(connection)
            chosen = set(row_ids)
            gone = [stored for stored in read_rules(connection) if stored.row_id in chosen]
            _record_rules(connection, "rule.remove", [stored.rule for stored in gone])
            connection.execute(tables.rules.delete().where(tables.rules.c.id.in_([stored.row_id for stored in gone])))
            return [stored.row_id for stored in gone]

    @repeated_after_deadlock
    def replace_rules(self, bucket: str, rules: Sequence[Rule]) -> None:
        """Replace a bucket's rules in one transaction; a rule that it has already keeps its number.

        Raises `BadRules`, `UnknownTarget`; then nothing has changed.
        """
        check(rules)
        with self._database.writing() as connection:
            log_head.change_routing(connection)
            rows = {rule: rule_to_row(connection, rule) for rule in rules}
            before = read_rules(connection, bucket)
            gone = [stored for stored in before if stored.rule not in rows]
            for stored in before:
                rows.pop(stored.rule, None)
            connection.execute(tables.rules.delete().where(tables.rules.c.id.in_([stored.row_id for stored in gone])))
            if rows:
                connection.execute(tables.rules.insert(), list(rows.values()))
            _check_expressions(connection, rules)
            _record_rules(connection, "rule.remove", [stored.rule for stored in gone])
            _record_rules(connection, "rule.add", list(rows))


def _check_expressions(connection: sa.Connection, changed: Iterable[Rule]) -> None:
    """Check the expressions of all rules that are tried for the same events as those just stored. Raises `BadRules`."""
    for bucket in {rule.bucket for rule in changed if rule.filters.regex}:
        stored = read_rules(connection, None if bucket == EVERY_BUCKET else bucket)
        of_every = () if bucket == EVERY_BUCKET else read_rules(connection, EVERY_BUCKET)
        check_expressions(one.rule for one in (*stored, *of_every))


def open_registry(database: Database, settings: Settings) -> Registry:
    """Open the registry of a service with these settings, as `open_sealer` opens its keys."""
    return Registry(database, open_sealer(settings))


def open_sealer(settings: Settings) -> Sealer:
    """Return what seals the service's secrets; without secret keys, create one in the service's folder.

    If a secret needs an unknown key, BUCKETWIRE_SECRET_KEYS is read again, because it may refer to a file.
    """
    return Sealer(settings.secret_keys or [key_file(settings.key_path)], _keys_by_now)


def _keys_by_now() -> Sequence[str]:
    try:
        return Settings.from_environ(os.environ).secret_keys
    except BadSettings:  # the file is just being replaced
        return ()


def _resource(target: TargetId) -> str:
    return f"target:{target}"


def _record_rules(connection: sa.Connection, action: str, rules: Sequence[Rule]) -> None:
    audit.record_all(connection, action, [(f"bucket:{rule.bucket}", audit_facts(rule)) for rule in rules])


def _begin_removal(connection: sa.Connection, stored: StoredTarget) -> None:
    """Have nothing recorded for the target any more, nor sent."""
    from app.outbox.delivery import transitions  # noqa: PLC0415 - slow, and few commands need it

    r, t = tables.rules.c, tables.targets.c
    gone = [row.rule for row in read_rules(connection) if row.rule.target == stored.target]
    connection.execute(tables.rules.delete().where(r.target_id == stored.row_id))
    _record_rules(connection, "rule.remove", gone)
    if stored.enabled or stored.reason != _BEING_REMOVED:
        change = {"enabled": False, "reason": _BEING_REMOVED}
        connection.execute(tables.targets.update().where(t.id == stored.row_id).values(**change))
        audit.record(connection, "target.disable", _resource(stored.target), {"reason": _BEING_REMOVED})
    transitions.revoke_leases(connection, stored.row_id)


def _losses(connection: sa.Connection, target_id: int) -> list[str]:
    """Describe what would be lost with a target, one phrase for each kind."""
    count = sa.select(sa.func.count()).select_from(tables.rules).where(tables.rules.c.target_id == target_id)
    rules = connection.execute(count).scalar_one()
    [counters] = read_counters(connection, oldest=False, target_id=target_id)
    return [
        text
        for number, text in (
            (rules, count_noun(rules, "rule")),
            (counters.undelivered, count_noun(counters.undelivered, "undelivered event")),
            (counters.dead, count_noun(counters.dead, "dead letter")),
        )
        if number
    ]


_S = tables.service_settings.c


def read_api_settings(connection: sa.Connection) -> dict[str, str]:
    """Return the stored texts of the section `api`; none for a key that is not set."""
    query = sa.select(_S.name, _S.value).where(_S.name != OLDEST_CODE)
    return {row.name: row.value for row in connection.execute(query)}


def write_api_settings(connection: sa.Connection, texts: Mapping[str, str]) -> None:
    """Set these keys; an empty text removes one. Two writers at once wait for each other."""
    log_head.lock(connection)
    connection.execute(tables.service_settings.delete().where(_S.name.in_(list(texts))))
    rows = [{"name": name, "value": text} for name, text in texts.items() if text]
    if rows:
        connection.execute(tables.service_settings.insert(), rows)
