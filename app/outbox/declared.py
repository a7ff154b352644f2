"""Read what is declared in the outbox: targets and rules, and rows that have a type, a name and settings.

Targets, sources and the settings of buckets are such rows; their secrets are sealed. `app.outbox.registry` changes
targets and rules.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.errors import REDACTED, BadSettings, suggest_name
from app.config.fields.fields import Declared
from app.config.secrets import Sealer
from app.config.target_settings import load, redacted
from app.outbox import tables
from app.outbox.engine.database import Database
from app.resources import rule as resources
from app.resources.rule import RuleFacts
from app.rules.filters import NO_FILTERS, parse_filters
from app.rules.matching import compile_rules
from app.rules.model import PREFIX_AND_SUFFIX, Rule

_MAX_COMPARED = 1_000  # names, which takes some 20 ms
NOT_NAMED = "the environment no longer names it"  # a reason

_Settings = TypeVar("_Settings", bound=Declared)
_Stored = TypeVar("_Stored")


class Named(Protocol):
    """What names a row."""

    @property
    def type(self) -> str:
        """The type of the settings."""

    @property
    def name(self) -> str:
        """One of several of the type."""


class StoredRow(Protocol):
    """A row as it is read; `values` are its settings as texts, with sealed secrets."""

    @property
    def identity(self) -> Named:
        """Type and name."""

    @property
    def values(self) -> Mapping[str, str]:
        """The settings."""


class EnvironmentRow:
    """A row that the environment's variables may have brought."""

    __slots__ = ()
    origin: str
    enabled: bool
    reason: str

    @property
    def is_read_only(self) -> bool:
        """Whether it can only be changed in the environment, which names it."""
        return self.origin == "environment" and (self.enabled or self.reason != NOT_NAMED)


def read_rows(connection: sa.Connection, table: sa.Table) -> sa.CursorResult[Any]:
    """Read every row, sorted by type and name."""
    return connection.execute(sa.select(table).order_by(table.c.type, table.c.name))


def read_row(connection: sa.Connection, table: sa.Table, which: Named, *, lock: bool = False) -> sa.Row[Any] | None:
    """Read one row, and lock it if that is wanted; None if there is none."""
    chosen = sa.select(table).where(table.c.type == which.type, table.c.name == which.name)
    return connection.execute(chosen.with_for_update() if lock else chosen).one_or_none()


def some_names(connection: sa.Connection, table: sa.Table) -> list[tuple[str, str]]:
    """Return types and names, of at most so many rows that a mistyped one is quickly compared with them."""
    rows = connection.execute(sa.select(table.c.type, table.c.name).order_by(table.c.id).limit(_MAX_COMPARED))
    return [(row.type, row.name) for row in rows]


def converted(row: Any, to: Callable[..., _Stored], **identity: Named) -> _Stored:
    """Convert a row to a dataclass with the fields `row_id`, `values`, its identity, and columns of the table."""
    columns = {name: getattr(row, name) for name in _columns(to) if name not in identity and hasattr(row, name)}
    return to(row_id=row.id, values=orjson.loads(row.settings), **identity, **columns)


@lru_cache
def _columns(of: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(of) if field.name not in ("row_id", "values"))


class SealedSettings(Generic[_Settings]):
    """Seal and unseal the settings of a table's rows; `declaration` returns the settings' class of a type."""

    def __init__(self, sealer: Sealer, table: sa.Table, declaration: Callable[[str], type[_Settings]]) -> None:
        self._sealer = sealer
        self._table = table
        self._declaration = declaration

    def settings(self, stored: StoredRow) -> _Settings:
        """Return a row's settings with unsealed secrets. Raises `BadSettings`."""
        return load(self._declaration(stored.identity.type), self.texts(stored), lenient=True)

    def texts(self, stored: StoredRow, *, without: Collection[str] = ()) -> dict[str, str]:
        """Return a row's settings as texts with unsealed secrets, `without` some keys. Raises `BadSettings`."""
        sealed = {key: text for key, text in stored.values.items() if key not in without}
        return self._sealer.unseal_all(stored.identity, sealed)

    def readable_texts(self, stored: StoredRow) -> dict[str, str]:
        """Return a row's settings as `texts` does; none if they cannot be read: every key has to be set again.

        They were sealed with a key that is lost, or are of a type that this version does not know.
        """
        try:
            return self.texts(stored)
        except BadSettings:
            return {}

    def redacted_texts(self, stored: StoredRow) -> dict[str, str]:
        """Return a row's settings as they may be shown, secrets redacted; all are if they cannot be read."""
        try:
            return redacted(self._declaration(stored.identity.type), self.texts(stored))
        except BadSettings:
            return dict.fromkeys(stored.values, REDACTED)

    def seal(self, type_name: str, texts: Mapping[str, str]) -> str:
        """Return texts as the column `settings` has them; all are sealed if this version does not know the type."""
        try:
            declaration = self._declaration(type_name)
        except BadSettings:
            declaration = None
        return orjson.dumps(self._sealer.seal_all(declaration, texts)).decode()

    def unseal_to_compare(self, row: sa.Row[Any] | None, which: Named) -> Mapping[str, str]:
        """Return the texts of a row that is to be changed, as `Sealer` does; none if there is no row."""
        return {} if row is None else self._sealer.unseal_to_compare(which, orjson.loads(row.settings))

    def seal_again(self, connection: sa.Connection) -> int:
        """Seal the secrets of every row with the newest key, and return the number of rows.

        Raises `BadSettings` if a secret was sealed with a key that is not known any more.
        """
        t = self._table.c
        rows = connection.execute(sa.select(t.id, t.type, t.name, t.settings).with_for_update()).all()
        for row in rows:
            texts = self._sealer.unseal_all(f"{row.type}:{row.name}", orjson.loads(row.settings))
            change = self._table.update().where(t.id == row.id).values(settings=self.seal(row.type, texts))
            connection.execute(change)
        return len(rows)


# Whether a target was opened with its present settings (`app.outbox.delivery.availability`).
OPENING_DUE, OPENED, OPENING_FAILED = "due", "opened", "failed"


class UnknownTarget(LookupError):
    """No target of that type and name is configured; the message names the nearest of `known`."""

    def __init__(self, target: TargetId, known: Iterable[TargetId] = ()) -> None:
        super().__init__(f"there is no target {target}; {suggest_name(target, known, 'bucketwire target ls')}")
        self.target = target


@dataclass(frozen=True, slots=True)
class Failing:
    """All attempts at a target since its last success have failed: how many, since when (ms), and the last reason."""

    attempts: int
    since: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StoredTarget(EnvironmentRow):
    """A row of the table of targets; `values` are its settings as texts, with sealed secrets.

    `failing` is there if the reader has looked (`app.outbox.delivery.availability`), which workers do not.
    """

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
    opening: str = OPENING_DUE
    opening_reason: str = ""
    opening_at: int = 0
    opening_due_at: int = 0
    opening_tries: int = 0
    revision: int = 0
    failing: Failing | None = None
    discarded_at: int | None = None
    acknowledged: int = 0

    @property
    def identity(self) -> TargetId:
        """Type and name."""
        return self.target

    @property
    def state(self) -> str:
        """The target's state: `running`, `failing`, `unavailable`, `paused`, `disabled` or `broken`."""
        if self.problem:
            return "broken"
        if not self.enabled:
            return "disabled"
        if self.paused:
            return "paused"
        if self.breaker != "closed":
            return "unavailable"
        return "running" if self.failing is None else "failing"

    @property
    def paused_itself(self) -> bool:
        """Whether its own answer has paused it: an operator who pauses it closes the circuit breaker."""
        return self.state == "paused" and self.breaker != "closed"

    @property
    def state_reason(self) -> str:
        """Why the target is in its state; empty for `running`."""
        if self.state == "failing" and self.failing is not None:
            last = f"; the last: {self.failing.reason}" if self.failing.reason else ""
            return f"all {self.failing.attempts} attempts since its last success failed{last}"
        return self.problem or ("" if self.state == "running" else self.reason)


def stored_target(row: Any) -> StoredTarget:
    """Convert a row with every column of the table of targets."""
    return converted(row, StoredTarget, target=TargetId(row.type, row.name))


def find_target(connection: sa.Connection, target: TargetId) -> StoredTarget:
    """Return one target. Raises `UnknownTarget`."""
    row = read_row(connection, tables.targets, target)
    if row is None:
        raise UnknownTarget(target, [TargetId(*name) for name in some_names(connection, tables.targets)])
    return stored_target(row)


def enabled_targets(database: Database) -> list[TargetId]:
    """Return the enabled targets, including paused ones: a worker may have to serve them."""
    t = tables.targets.c
    with database.reading() as connection:
        return [TargetId(row.type, row.name) for row in connection.execute(sa.select(t.type, t.name).where(t.enabled))]


_NAMES = "names"  # in the column `filters`: the client's order of the key's filters


@dataclass(frozen=True, slots=True)
class StoredRule:
    """A rule and its number, by which it can be removed."""

    row_id: int
    rule: Rule


def read_rules(connection: sa.Connection, bucket: str | None = None) -> list[StoredRule]:
    """Return every rule, or those of one bucket, oldest first."""
    r, t = tables.rules.c, tables.targets.c
    query = sa.select(tables.rules, t.type, t.name).join_from(tables.rules, tables.targets).order_by(r.id)
    if bucket is not None:
        query = query.where(r.bucket == bucket)
    rows = connection.execute(query)
    return [StoredRule(row.id, rule_from_row(row, TargetId(row.type, row.name))) for row in rows]


def rule_from_row(row: Any, target: TargetId) -> Rule:
    """Convert a row of the table of rules, whose `target_id` is that of the target."""
    stored = orjson.loads(row.filters) if row.filters else {}
    return Rule(
        bucket=row.bucket,
        events=tuple(orjson.loads(row.events)),
        prefix=row.prefix,
        suffix=row.suffix,
        target=target,
        rule_id=row.rule_id,
        filters=parse_filters(stored) if stored else NO_FILTERS,
        filter_names=tuple(stored.get(_NAMES) or filter(None, row.filter_names.split(","))),
    )


def rule_to_row(connection: sa.Connection, rule: Rule) -> dict[str, Any]:
    """Return the columns of a new row. Raises `UnknownTarget`."""
    has_more = rule.filters or not set(rule.filter_names) <= set(PREFIX_AND_SUFFIX)
    return {
        "bucket": rule.bucket,
        "rule_id": rule.rule_id,
        "events": orjson.dumps(rule.events).decode(),
        "prefix": rule.prefix,
        "suffix": rule.suffix,
        "filter_names": ",".join(name for name in rule.filter_names if name in PREFIX_AND_SUFFIX),
        "filters": orjson.dumps(rule.filters.members | {_NAMES: rule.filter_names}).decode() if has_more else None,
        "target_id": find_target(connection, rule.target).row_id,
    }


def matching_rules(rules: Iterable[StoredRule], bucket: str, name: str, key: str, record: str = "") -> list[StoredRule]:
    """Return those of the rules that match an event, in their order; `key` is the decoded key."""
    known = {stored.row_id: stored for stored in rules}
    matcher = compile_rules((stored.rule, number) for number, stored in known.items())
    return [known[number] for number in matcher.targets(bucket, name, key, record)]


def audit_facts(rule: Rule) -> dict[str, Any]:
    """Return a rule for the audit log of its bucket: its target, event names and filters that are not empty."""
    facts = {name: value for name, value in _members(rule, None).items() if name not in ("bucket", "rule_id")}
    return {name: value for name, value in facts.items() if value not in ("", [])}


def describe_rule(rule: Rule) -> RuleFacts:
    """Return a rule that is not stored as the API shows it, with its target as type:name."""
    return RuleFacts(**_members(rule, None))


def rule_resource(stored: StoredRule, region: str | None = None) -> resources.Rule:
    """Return a stored rule as the API shows it; without a region with its target as type:name."""
    return resources.Rule(number=stored.row_id, **_members(stored.rule, region))


def _members(rule: Rule, region: str | None) -> dict[str, Any]:
    return {
        "bucket": rule.bucket,
        "events": list(rule.events),
        "prefix": rule.prefix,
        "suffix": rule.suffix,
        "target": str(rule.target) if region is None else rule.target.arn(region),
        "rule_id": rule.rule_id,
        **rule.filters.members,
    }
