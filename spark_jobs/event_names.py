"""Tell by an event's name what it changes, in a frame: as `app.events.effects` does."""

import operator
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.effects import MARKER, OPEN_FAMILIES, ContentChange, names
from app.events.names import KNOWN


def has_change(name: Column, *changes: ContentChange) -> Column:
    """Return whether events of this name have one of these changes; null for no name."""
    condition = name.isin(names(*changes))
    for family, change in OPEN_FAMILIES.items():
        prefix = family[:-1]
        is_unknown = name.startswith(prefix) & ~name.isin(prefix, *sorted(KNOWN))
        is_marker = name.contains(MARKER) if change is ContentChange.REMOVED else F.lit(False)
        changed = {ContentChange.DELETE_MARKER: is_marker, change: ~is_marker}
        condition |= reduce(
            operator.or_, (is_unknown & changed[one] for one in changes if one in changed), F.lit(False)
        )
    return condition
