"""What a queue must be able to do for the source contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, ClassVar, Self

from tests import services
from tests.contract.probes.base import Probe


class SourceProbe:
    """A queue on a real server, filled by another client than the one that pulls.

    The server, and what empties it, are those of a target's probe.
    """

    type: str
    way: ClassVar[type[Probe]]  # of using a target that writes to such a queue
    target: Probe
    server: services.Server
    keeps_positions = False  # whether the outbox has the positions, or else the queue
    keeps_order = True  # of an object's messages, also if they come again
    is_sequence = True  # whether a share has one order, and not only each object
    is_binary = True  # whether a message may be any bytes, and not only a text
    # Messages without valid events.
    hostile: Sequence[bytes] = (
        b"\xff\xfe\x00", b"{", b'{"Records":[{"eventName":1}]}', b"[" * 100_000, b'"text"', b"\x00" * 1000,
    )  # fmt: skip

    def __init__(self, target: Probe) -> None:
        self.target, self.server = target, target.server

    @classmethod
    @contextmanager
    def alone(cls) -> Iterator[Self]:
        """A queue on a server of its own, which ends with the block."""
        with closing(cls.way()) as target:
            yield cls(target)

    def renew(self) -> None:
        """Begin an empty queue; the server runs."""
        self.target.renew()

    def values(self) -> Mapping[str, Any]:
        """Settings that are enough to pull from it."""
        raise NotImplementedError

    def impatient(self) -> Mapping[str, Any]:
        """Settings to have back soon what a stopped worker has taken."""
        return self.values()

    def send(self, bodies: Sequence[bytes], share: int = 0) -> None:
        """Append messages to a share of the queue, in order, and return when the server has them."""
        raise NotImplementedError
