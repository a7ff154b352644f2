"""Decide which targets share a part of a worker's pool, so that neither a tenant nor a patient target holds it all."""

import time
import zlib

from app.config.arn import TargetId
from app.config.errors import BadSettings
from app.config.targets.base import MAX_LIMITED_SECONDS
from app.outbox.engine.database import Database
from app.outbox.registry import Registry
from app.outbox.targets import StoredTarget
from app.outbox.tokens import read_target_owners
from workers.idle_processes import Share

_KNOWN_SECONDS = 10.0  # for which the tokens are cached
_MAX_KNOWN = 10_000  # targets whose time limits are cached


class PoolShares:
    """The shares of the targets that a process serves. Its methods raise `DatabaseUnavailable`."""

    def __init__(self, database: Database, registry: Registry) -> None:
        self._database = database
        self._registry = registry
        self._owners: dict[TargetId, str] = {}
        self._read_again = 0.0  # by time.monotonic()
        self._patient: dict[tuple[int, int], bool] = {}  # by row id and revision

    def of(self, stored: StoredTarget) -> Share:
        """Return the share that a target uses: that of the token which may set it, if it is limited, or its own."""
        if time.monotonic() >= self._read_again:
            self._owners = read_target_owners(self._database)
            self._read_again = time.monotonic() + _KNOWN_SECONDS
        owner = self._owners.get(stored.target)
        if owner is not None:
            return Share(-1 - zlib.crc32(owner.encode()), bounded=True, limited=True)
        return Share(stored.row_id, bounded=self._is_patient(stored))

    def _is_patient(self, stored: StoredTarget) -> bool:
        key = (stored.row_id, stored.revision)
        if key not in self._patient:
            if len(self._patient) >= _MAX_KNOWN:
                self._patient.clear()
            try:
                limits = dict(self._registry.settings(stored).time_limits())
            except BadSettings:  # it makes no call
                limits = {}
            self._patient[key] = max(limits.values(), default=0.0) > MAX_LIMITED_SECONDS
        return self._patient[key]
