"""A wire that can be cut in one direction: what a target does while the server's answers do not arrive."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from tests import services


class Relay:
    """Passes bytes between a port of its own and a server's; once `muted`, nothing more comes back from the server.

    What comes back goes through `change`.
    """

    def __init__(self, to: int, change: Callable[[bytes], bytes] = bytes) -> None:
        self._change = change
        self.muted = threading.Event()
        self._to = to
        self._listener = socket.create_server((services.LOOPBACK, 0))
        self.port = int(self._listener.getsockname()[1])
        self._wires = [self._listener]
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def close(self) -> None:
        """End every connection."""
        for wire in self._wires:
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for wire in self._wires:
            wire.close()

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((services.LOOPBACK, self._to))
                self._wires += [client, server]
                self._run(self._pump, client, server, None)
                self._run(self._pump, server, client, self.muted)

    def _pump(self, source: socket.socket, sink: socket.socket, muted: threading.Event | None) -> None:
        with contextlib.suppress(OSError):
            while received := source.recv(1 << 16):
                if muted is None:
                    sink.sendall(received)
                elif not muted.is_set():
                    sink.sendall(self._change(received))
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def relay(to: int, change: Callable[[bytes], bytes] = bytes) -> Iterator[Relay]:
    """A relay to this port, ended with the block."""
    made = Relay(to, change)
    try:
        yield made
    finally:
        made.close()
