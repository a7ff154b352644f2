"""Proxies in a process of their own, which passes bytes on however busy that of the tests is."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tests.services.proxy import proxy


@dataclass(frozen=True)
class FarProxy:
    """What a `Proxy` of that process does on request; to be asked by one thread at a time."""

    port: int
    _number: int
    _pipe: Connection

    def swallow(self) -> None:
        """As `Proxy.swallow`."""
        self._ask("swallow")

    def drip(self, seconds: float) -> None:
        """As `Proxy.drip`."""
        self._ask("drip", seconds)

    def precede(self, share: float) -> None:
        """As `Proxy.precede`."""
        self._ask("precede", share)

    def hold_next(self) -> None:
        """As `Proxy.hold_next`."""
        self._ask("hold_next")

    def release(self) -> None:
        """As `Proxy.release`."""
        self._ask("release")

    def heal(self) -> None:
        """As `Proxy.heal`."""
        self._ask("heal")

    def _ask(self, act: str, *given: Any) -> None:
        self._pipe.send((self._number, act, given))
        self._pipe.recv()


@contextlib.contextmanager
def far_proxies(to: Sequence[int]) -> Iterator[list[FarProxy]]:
    """Proxies to these ports, ended with the block, or when this process is gone."""
    spawning = multiprocessing.get_context("spawn")
    near, far = spawning.Pipe()
    process = spawning.Process(target=_serve, args=(far, to), daemon=True)
    process.start()
    far.close()
    try:
        yield [FarProxy(port, number, near) for number, port in enumerate(near.recv())]
    finally:
        near.close()
        process.join(30)
        process.kill()


def _serve(pipe: Connection, to: Sequence[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests' process ends this one
    with contextlib.ExitStack() as stack, contextlib.suppress(EOFError):
        made = [stack.enter_context(proxy(port)) for port in to]
        pipe.send([each.port for each in made])
        while True:
            number, act, given = pipe.recv()
            getattr(made[number], act)(*given)
            pipe.send(None)
