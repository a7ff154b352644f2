"""The interface of a probe, and what can be said of all of them."""

from __future__ import annotations

import gc
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote_plus

import psutil
import pytest

from app.config import target_settings
from app.events.model import Event
from tests import services
from tests.support import sample_events
from workers.delivery.outcomes import Outcome, Unavailable
from workers.targets import create
from workers.targets.base import Target, TargetUnavailable

TIMEOUT = 2.0  # what targets are given; no call may take longer than LIMIT
LIMIT = 8.0


class Probe(ABC):
    """One way of using one target type, with a real server of its own."""

    type: ClassVar[str]
    is_namespace: ClassVar[bool] = False  # one row for each object, else one entry for each event
    can_reject: ClassVar[bool] = False  # the remote has a word for "never"
    drops_repeats: ClassVar[bool] = False  # the remote knows an event again, and keeps it once
    keeps: ClassVar[bool] = True  # what the remote confirmed is there when it was killed meanwhile
    one_request: ClassVar[bool] = False  # a request carries a whole call's events
    one_writer: ClassVar[bool] = False  # `held` knows the order only of what one target has written
    settles: ClassVar[float] = 0.0  # seconds until what was made at the server outlives its kill
    tls_within_protocol: ClassVar[bool] = False  # TLS begins within the protocol, not with the first byte
    strangers_fail_at: ClassVar[str] = "login"  # the step of a target test at which `as_stranger` fails
    secret: ClassVar[str] = services.PASSWORD
    opens_of_host: ClassVar[frozenset[str]] = frozenset()  # files of the worker's host, of which it uses nothing

    # Starts the server, which takes long, for all ways of using the type; without it each has a server of its own.
    shared_server: ClassVar[Callable[[], services.Server] | None] = None

    server: services.Server

    @abstractmethod
    def values(self) -> dict[str, str]:
        """The settings that reach the server and let the target in."""

    @abstractmethod
    def at_port(self, port: int) -> dict[str, str]:
        """The same settings with another port."""

    def in_clear(self, port: int) -> dict[str, str]:
        """The same settings with another port, without the TLS that a driver would begin by itself."""
        return self.at_port(port)

    @abstractmethod
    def as_stranger(self) -> dict[str, str]:
        """Settings with a password that the server does not take, which is `wrong-s3cret`."""

    @abstractmethod
    def by_tls(self, ca: Path) -> dict[str, str]:
        """Settings that reach the server, or another of its kind, over TLS and trust this authority alone."""

    @abstractmethod
    def held(self) -> list[tuple[str, str]]:
        """(path, document) of all that the server holds, by another client than the target's; entries in order."""

    @abstractmethod
    def expected(self, event: Event) -> str:
        """The document that the event shall arrive as."""

    @abstractmethod
    def renew(self) -> None:
        """Nothing held, and the server running and in a good mood."""

    @property
    def port(self) -> int:
        """The server's port for the settings of the probe."""
        of_server: int = getattr(self.server, "ws_port" if getattr(self, "websocket", False) else "port")
        return of_server

    def close_gateways(self) -> None:  # noqa: B027 - most have none
        """End what a test has put in front of the server."""

    def close(self) -> None:
        """End the server."""
        self.close_gateways()
        self.server.stop()

    def poison(self, key: str) -> Event:
        """An event that the server will never take, where `can_reject`."""
        return sample_events.poisoned(key)

    def same(self, document: str, expected: str) -> bool:
        """Whether a held document is the expected one; byte for byte unless the store itself rewrites it."""
        return document == expected

    def target(self, values: dict[str, str] | None = None, **changes: str) -> Target:
        """A target of these settings, `values()` unless given, not yet opened."""
        chosen = {"timeout": f"{TIMEOUT}s"} | (self.values() if values is None else values) | changes
        return create(self.type, target_settings.load(self.type, dict(chosen)))

    @contextmanager
    def opened(self, values: dict[str, str] | None = None, **changes: str) -> Iterator[Target]:
        """Such a target, open until the block ends."""
        with opened(self.target(values, **changes)) as target:
            yield target

    def delivered(
        self, batch: Sequence[Event], window: int = 1, values: dict[str, str] | None = None, **changes: str
    ) -> list[Outcome]:
        """The outcomes of one call to such a target. Raises `TargetUnavailable`."""
        with self.opened(values, **changes) as target:
            return list(target.deliver(batch, window))

    def numbers(self) -> dict[str, list[int]]:
        """For each path the numbers of its PUTs, in the order in which the server holds them."""
        found: dict[str, list[int]] = {}
        for path, document in self.held():
            found.setdefault(path, []).append(sample_events.number_of(document))
        return found


@contextmanager
def opened(target: Target) -> Iterator[Target]:
    """The target, opened now and closed when the block ends."""
    with closing(target):
        target.open()
        yield target


def assert_no_socket_is_left(target: Target) -> None:
    """The target cannot be opened, and closes what it has opened at once, without the garbage collector."""
    before = psutil.Process().num_fds()
    gc.disable()
    try:
        with pytest.raises(TargetUnavailable):
            target.open()
        assert psutil.Process().num_fds() == before
    finally:
        gc.enable()


def attempt(target: Target, batch: Sequence[Event], window: int) -> Sequence[Outcome]:
    """What a worker makes of a call: `TargetUnavailable` counts for every event."""
    try:
        return target.deliver(batch, window)
    except TargetUnavailable as error:
        return [Unavailable(error.reason, error.retry_after, error.pause)] * len(batch)


def one_outcome(probe: Probe, values: dict[str, str], window: int = 1) -> Outcome:
    """Deliver one event to the target with these settings, and close it."""
    target = probe.target(values)
    try:
        (outcome,) = attempt(target, [sample_events.put("a")], window)
    finally:
        target.close()
    return outcome


def unavailable(outcome: Outcome) -> str:
    """The reason of an outcome that has to be `Unavailable`."""
    assert isinstance(outcome, Unavailable), outcome
    return outcome.reason


def path_of(document: str | bytes) -> str:
    """The path that an envelope is about."""
    record = sample_events.record_of(json.loads(document))
    return f"{record['s3']['bucket']['name']}/{unquote_plus(record['s3']['object']['key'])}"
