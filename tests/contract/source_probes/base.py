"""What a queue must be able to do for the source contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests import services


class SourceProbe:
    """A queue on a real server, filled by another client than the one that pulls."""

    type: str
    server: services.Server
    keeps_positions = False  # whether the outbox has the positions, or else the queue
    keeps_order = True  # of an object's messages, also if they come again
    is_sequence = True  # whether a share has one order, and not only each object
    # Messages without valid events.
    hostile: Sequence[bytes] = (
        b"\xff\xfe\x00", b"{", b'{"Records":[{"eventName":1}]}', b"[" * 100_000, b'"text"', b"\x00" * 1000,
    )  # fmt: skip

    def renew(self) -> None:
        """Begin an empty queue; the server runs."""
        raise NotImplementedError

    def values(self) -> Mapping[str, Any]:
        """Settings that are enough to pull from it."""
        raise NotImplementedError

    def impatient(self) -> Mapping[str, Any]:
        """Settings to have back soon what a stopped worker has taken."""
        return self.values()

    def send(self, bodies: Sequence[bytes], share: int = 0) -> None:
        """Append messages to a share of the queue, in order, and return when the server has them."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the server."""
        self.server.stop()
