"""A list of Redis, filled over a socket of our own as MinIO fills it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tests import services
from tests.contract.probes import redis
from tests.contract.probes.base import Probe
from tests.contract.source_probes.base import SourceProbe


class Elements(SourceProbe):
    """A list, which is one share."""

    type = "redis"
    way: ClassVar[type[Probe]] = redis.Access
    target: redis.Access | redis.Stream
    server: services.Redis

    def values(self) -> Mapping[str, Any]:
        given = self.target.values()
        return {name: given[name] for name in ("address", "key", "password", "format")}

    def send(self, bodies: Sequence[bytes], share: int = 0) -> None:
        self.target.ask("RPUSH", "bucketevents", *bodies)


PROBE = Elements
