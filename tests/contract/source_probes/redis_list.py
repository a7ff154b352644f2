"""A list of Redis, filled over a socket of our own as MinIO fills it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests import services
from tests.contract.probes import redis
from tests.contract.source_probes.base import SourceProbe


class Elements(SourceProbe):
    """A list, which is one share."""

    type = "redis"

    def __init__(self) -> None:
        self.target = redis.Access()
        self.server: services.Redis = self.target.server

    def renew(self) -> None:
        self.target.renew()

    def values(self) -> Mapping[str, Any]:
        given = self.target.values()
        return {name: given[name] for name in ("address", "key", "password", "format")}

    def send(self, bodies: Sequence[bytes], share: int = 0) -> None:
        self.target.ask("RPUSH", "bucketevents", *bodies)


PROBE = Elements
