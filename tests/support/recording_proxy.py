"""A place in front of a real server that passes everything on, and writes down what the client said."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Protocol, Self

from tests import services


class HasPort(Protocol):
    """A server, or what reaches one."""

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""


class Wiretap:
    """Listens on `host`, an address of the loopback network, and connects to `server` on 127.0.0.1.

    A connection over which a client says `cut_at` is cut there. With `then` all but the first connection lead there.
    """

    def __init__(
        self, server: HasPort, host: str = services.LOOPBACK, cut_at: bytes = b"", then: HasPort | None = None
    ) -> None:
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self.said = bytearray()  # what clients sent, of several connections one after the other
        self._cut_at = cut_at
        self._port, self._later = server.port, (then or server).port
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):  # it may be closed already, or never have been connected
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((services.LOOPBACK, self._port))
                self._port = self._later
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._pass_on, args=(source, sink, source is near))
                    self._threads.append(thread)
                    thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, from_client: bool) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                if from_client:
                    self.said += part
                    if self._cut_at and self._cut_at in part:
                        source.shutdown(socket.SHUT_RDWR)
                        break
                sink.sendall(part)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
