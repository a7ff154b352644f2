"""Select events by their names and by families of names, whose unknown members belong to them."""

from collections.abc import Collection

import sqlalchemy as sa

from app.events.names import AGGREGATES, expand


def is_named(column: sa.ColumnElement[str], names: Collection[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a name is one of these, or an unknown member of one of the families among them."""
    conditions: list[sa.ColumnElement[bool]] = [column.in_(names)]
    for family in sorted(set(names) & AGGREGATES.keys()):
        prefix = family[:-1]
        # `substr` and not LIKE, which makes no difference between upper and lower case in SQLite.
        conditions.append(
            sa.and_(sa.func.substr(column, 1, len(prefix)) == prefix, column.not_in(sorted(expand(family))))
        )
    return sa.or_(*conditions)
