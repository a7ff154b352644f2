"""A stream of Redis."""

from __future__ import annotations

from collections.abc import Sequence

from tests.contract.probes import redis
from tests.contract.source_probes import redis_list

# KEYS: the stream; ARGV: the bodies.
_ADD = "for _, body in ipairs(ARGV) do redis.call('XADD', KEYS[1], '*', 'body', body) end return #ARGV"


class Entries(redis_list.Elements):
    """A stream, which is one share."""

    way = redis.Stream
    keeps_positions = True

    def send(self, bodies: Sequence[bytes], share: int = 0) -> None:
        self.target.ask("EVAL", _ADD, "1", "bucketevents", *bodies)


PROBE = Entries
