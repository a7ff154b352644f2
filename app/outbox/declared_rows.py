"""The rows of what is declared by a type, a name and settings: targets and sources. Secrets in them are sealed."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import orjson
import sqlalchemy as sa

from app.config.errors import REDACTED, BadSettings
from app.config.fields.fields import Declared
from app.config.secrets import Sealer
from app.config.target_settings import load, redacted

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
