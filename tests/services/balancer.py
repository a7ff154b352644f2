"""HAProxy as a load balancer: it follows the probes of its servers, or what it is told of them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests.services.server_process import LOOPBACK, Server, accepting, free_port

# Nothing is sent again by it: a connection that a server refuses, or closes without an answer, is an error.
_CONFIGURATION = """
global
    stats socket {socket} level admin
defaults
    timeout connect 5s
    timeout client 120s
    timeout server 120s
    retries 0
    default-server {check}
listen requests
    mode http
    bind {host}:{port}
    {probe}
    {servers}
listen connections
    mode tcp
    bind {host}:{tcp_port}
    {probe}
    {servers}
"""


@dataclass(eq=False)
class Balancer(Server):
    """A balancer of HTTP requests at `port`, and one of connections at `tcp_port`.

    With `probe`, a path, a server that does not answer 200 to it gets nothing new within 0.2 s. Without, `set_ready`
    says which servers get new connections, as a cluster says it to its nodes.
    """

    name: ClassVar[str] = "haproxy"
    servers: Sequence[int]  # ports, each of them also its name
    probe: str = ""

    def prepare(self) -> None:
        self.tcp_port = free_port()
        self._socket = self.folder / "socket"
        (self.folder / "haproxy.cfg").write_text(
            _CONFIGURATION.format(
                socket=self._socket, host=LOOPBACK, port=self.port, tcp_port=self.tcp_port,
                check="check inter 100ms fall 2 rise 1" if self.probe else "",
                probe=f"option httpchk GET {self.probe}" if self.probe else "",
                servers="\n    ".join(f"server {port} {LOOPBACK}:{port}" for port in self.servers),
            )
        )  # fmt: skip

    def argv(self) -> Sequence[str | Path]:
        return ["/usr/sbin/haproxy", "-db", "-f", self.folder / "haproxy.cfg"]

    def ping(self) -> None:
        accepting(self.port)
        self._ask("show stat")  # it has the socket a moment later

    def is_ready(self, server: int) -> bool:
        """Whether the server gets new connections."""
        rows = [line.split(",") for line in self._ask("show stat").splitlines()]
        states = [row[17] for row in rows if len(row) > 17 and row[1] == str(server)]
        return len(states) == 2 and all(state in ("UP", "no check") for state in states)

    def set_ready(self, server: int, *, ready: bool) -> None:
        """Let the server get new connections, or none; those that it has stay."""
        for place in ("requests", "connections"):
            self._ask(f"set server {place}/{server} state {'ready' if ready else 'drain'}")

    def _ask(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._socket))
            connection.sendall(f"{command}\n".encode())
            answer = b""
            while piece := connection.recv(1 << 16):
                answer += piece
        return answer.decode()


def balancer(*servers: int, probe: str = "") -> Balancer:
    """A running balancer in front of these ports."""
    return Balancer(servers, probe).start()
