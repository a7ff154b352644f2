"""A server of one's own protocol that talks to one client after the other, as no real server does."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

from tests.services.server_process import LOOPBACK


class RogueServer:
    """Listens from its creation on until it is closed; `talk` has the conversation with one client."""

    def __init__(self, file: Path | None = None) -> None:
        """With `file` it listens on that socket file, and else on `port`."""
        self.port = 0
        if file is None:
            self._listener = socket.create_server((LOOPBACK, 0))
            self.port = int(self._listener.getsockname()[1])
        else:
            self._listener = socket.create_server(str(file), family=socket.AF_UNIX)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def talk(self, client: socket.socket) -> None:
        """Talk to a client; its connection is closed afterwards."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.settimeout(30)
            with client, suppress(OSError, EOFError):
                self.talk(client)


def exactly(client: socket.socket, size: int) -> bytes:
    """Receive so many bytes; `EOFError` if the client hangs up before."""
    content = b""
    while len(content) < size:
        part = client.recv(size - len(content))
        if not part:
            raise EOFError
        content += part
    return content
