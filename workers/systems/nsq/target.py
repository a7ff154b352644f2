"""NSQ: each event is one message, the log envelope, on one topic of one nsqd (reference §4.6).

Delivered means: nsqd answered OK to the command that carried the event. It then has the event in memory or on disk,
depending on its `-mem-queue-size`.

A call is one MPUB for as many events as fit; nsqd reads and checks all of it before it accepts any, and confirms it as
one, so that `window` makes no difference. It uses a blocking socket, one command at a time;
docs/decisions/0010-socket-for-nsq.md explains the reasons and the cost.

| nsqd's answer                                       | outcome                                                      |
|-----------------------------------------------------|--------------------------------------------------------------|
| OK                                                  | Delivered                                                    |
| E_BAD_MESSAGE, E_BAD_BODY to one event              | Rejected                                                     |
| the same to several                                 | each half is sent by itself, until the event is found        |
| any other error, no answer in time, no connection   | Unavailable                                                  |
| connection lost, but nsqd accepts a new one         | as E_BAD_BODY, but one event alone is Failed; a connection   |
|                                                     | of an earlier call: sent once more by a new one              |
"""

import re
from collections.abc import Iterator, Sequence

from app.config.targets.nsq import NsqSettings
from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.systems.nsq.connection import LostError, NsqConnection, RefusedError
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import Batch
from workers.targets.messages import LEAST_BYTES, message_format
from workers.targets.tcp import Endpoint

# nsqd accepts 5 MB in a command by default, and more than about 500 KB brings no gain.
BATCH_BYTES = 1_000_000

# nsqd reports the error of a message that is too large and then closes the connection, so the error may get lost.
_ABOUT_MESSAGES = ("E_BAD_MESSAGE", "E_BAD_BODY")
_TOO_LARGE = re.compile(r"too big \d+ > (\d+)$")
MAX_LOSSES = 32  # of connections in a call; more than are needed to find one event among 10,000, twice


class NsqTarget:
    """One nsqd, one connection."""

    def __init__(self, settings: NsqSettings) -> None:
        self._settings = settings
        self._write = message_format(settings).body
        self._wire: NsqConnection | None = None
        self._losses = 0  # of connections, in the current call
        self._is_idle = False  # whether the connection is of an earlier call, and nothing was answered in this one

    def endpoints(self) -> Sequence[Endpoint]:
        """Return nsqd."""
        return [Endpoint(self._settings.nsqd_address)]

    def open(self) -> None:
        """Connect, identify and negotiate TLS. nsqd creates the topic with its first message."""
        self._connect()

    def deliver(
        self,
        events: Sequence[Event],
        window: int,  # noqa: ARG002 (one MPUB is one)
        lease: LeaseCheck = NO_LEASE,
    ) -> Sequence[Outcome]:
        """Send one command for up to 1 MB of events; after an `Unavailable` nothing more is sent."""
        self._is_idle = self._wire is not None and not self._wire.is_stale
        if not self._is_idle:
            self._connect()
        batch = Batch(events, lease)
        bodies = [self._write(event).encode() for event in events]
        self._losses = 0
        try:
            for part in _parts(bodies):
                self._publish(batch, part, bodies)
        except TargetUnavailable as error:
            self.close()
            batch.lose(Unavailable(error.reason))
        return batch.outcomes()

    def close(self) -> None:
        """Close the connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _connect(self) -> NsqConnection:
        self.close()
        self._wire = NsqConnection(self._settings)
        return self._wire

    def _publish(self, batch: Batch, part: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Settle this part, by halves if nsqd does not accept it as a whole. Raises `TargetUnavailable`."""
        part = batch.begin(part)
        if not part:
            return
        wire = self._wire
        if wire is None or wire.is_stale:  # another answer has come: it would be taken for the one to this command
            wire = self._connect()
        try:
            wire.publish([bodies[index] for index in part])
            self._is_idle = False
        except RefusedError as refused:
            self.close()
            limit = _TOO_LARGE.search(refused.reason)
            if refused.code not in _ABOUT_MESSAGES or (limit and int(limit[1]) < LEAST_BYTES):
                raise TargetUnavailable(refused.reason) from refused
            alone: Outcome = Rejected(refused.reason)
        except LostError as lost:
            self._connect()
            if self._is_idle:  # nsqd may have closed it meanwhile, which is no event's fault
                self._is_idle = False
                self._publish(batch, part, bodies)
                return
            self._losses += 1
            if self._losses > MAX_LOSSES:
                raise TargetUnavailable(lost.reason) from lost
            alone = Failed(lost.reason)
        else:
            batch.settle_all(part, DELIVERED)
            return
        if len(part) > 1:
            self._publish(batch, part[: len(part) // 2], bodies)
            self._publish(batch, part[len(part) // 2 :], bodies)
        else:
            batch.settle(part[0], alone)


def _parts(bodies: Sequence[bytes]) -> Iterator[range]:
    start = size = 0
    for index, body in enumerate(bodies):
        if index > start and size + len(body) > BATCH_BYTES:
            yield range(start, index)
            start, size = index, 0
        size += len(body)
    if start < len(bodies):
        yield range(start, len(bodies))
