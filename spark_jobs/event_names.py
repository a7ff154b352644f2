"""Tell by an event's name what it changes, in a frame: as `app.events.names` does."""

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.names import KNOWN, MARKER, OPEN_FAMILIES, ContentChange, names_with

REMOVALS = (ContentChange.DELETE_MARKER, ContentChange.REMOVED, ContentChange.ALL_DELETED)
_CHANGES = [change for change in ContentChange if change is not ContentChange.NOTHING]


def change_of(name: Column) -> Column:
    """Return the value of the change that events of this name make; null for none."""
    known = F.when(F.lit(False), "")
    for change in _CHANGES:
        known = known.when(name.isin(names_with(change)), change.value)
    prefixes = {family[:-1]: change for family, change in OPEN_FAMILIES.items()}
    # Most names are known: the families are looked at for the others only.
    changed = known.when(name.isin(*prefixes, *sorted(KNOWN)), None)
    for prefix, effect in prefixes.items():
        is_member = name.startswith(prefix)
        if effect is ContentChange.REMOVED:
            changed = changed.when(is_member & name.contains(MARKER), ContentChange.DELETE_MARKER.value)
        changed = changed.when(is_member, effect.value)
    return changed


def has_change(name: Column, *changes: ContentChange) -> Column:
    """Return whether events of this name have one of these changes."""
    return is_change(change_of(name), *changes)


def is_change(change: Column, *changes: ContentChange) -> Column:
    """Return whether a change, as `change_of` returns it, is one of these."""
    return F.coalesce(change.isin([one.value for one in changes]), F.lit(False))
