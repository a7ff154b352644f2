"""Which targets a worker serves: `bucketwire worker --targets` says it, by types and names; all processes know it."""

import os

from app.config.arn import TargetId

ALL, VARIABLE = "*", "BUCKETWIRE_WORKER_TARGETS"


class ServedTargets:
    """The targets that this process's worker serves; by default all of them."""

    def __init__(self) -> None:
        self._wanted = frozenset(filter(None, os.environ.get(VARIABLE, ALL).split(",")))

    @property
    def names(self) -> list[str]:
        """The types and names that it was told, sorted; `ALL` for every target."""
        return sorted(self._wanted)

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def __contains__(self, target: TargetId) -> bool:
        return not self._wanted.isdisjoint({ALL, target.type, str(target)})
