"""The webhook receiver of the tests as a server: what came in, and what it shall answer."""

from __future__ import annotations

import base64
import http.client
import json
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from tests.services.certificates import certificates
from tests.services.forking import fork
from tests.services.server_process import LOOPBACK, Child, Server, until

# What its process imports, which is forked with these, and what `fork_server` imports in each that it forks.
_MODULES = ("argparse", "asyncio", "h11", "orjson", "ssl", "tests.support", "app.supervisor.fork_server")


@dataclass(frozen=True)
class Answer:
    """One rule of the receiver; the first that fits a request, and has `times` left, answers it. None fits all.

    `delay` is in seconds, `headers` may hold Retry-After or Location, `close` ends the connection without an answer.
    """

    status: int = 200
    delay: float = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    close: bool = False
    path: str | None = None
    method: str | None = None
    containing: str | None = None
    times: int | None = None


@dataclass(frozen=True)
class Request:
    """One request as it came in; header names in lower case, `at` in seconds since the epoch, `status` the answer's.

    `connection` numbers the TCP connections, `subject` is the common name of the client's certificate. A `status` of 0
    means that the connection was closed without an answer.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float
    status: int
    connection: int
    subject: str | None

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(eq=False)
class Receiver(Server):
    """A real HTTP/1.1 server in a process of its own; a request is on file before it is answered.

    Requests and rules survive kill and start; how often a rule with `times` has answered is counted anew after either
    a start or a `set()`.
    """

    name: ClassVar[str] = "receiver"
    tls: bool = False
    client_cert: bool = False
    _seen: list[Request] = field(init=False, default_factory=list, repr=False)
    _offset: int = field(init=False, default=0, repr=False)

    def check(self) -> None:
        """It is ours and always there."""

    def prepare(self) -> None:
        self.file, self.rules = self.folder / "requests.jsonl", self.folder / "rules.json"
        self.file.touch()
        self.set()

    def spawn(self) -> Child:
        argv = ["tests.support.receiver", str(self.port), str(self.file), str(self.rules)]
        if self.tls or self.client_cert:
            certs = certificates()
            argv += ["--cert", str(certs.cert), "--key", str(certs.key)]
            if self.client_cert:
                argv += ["--ca", str(certs.ca)]
        return fork(argv, self.log, env={}, modules=_MODULES)

    def ping(self) -> None:
        # An OPTIONS request is answered without being put on file. With TLS the listening socket has to do: the
        # handshake is the tests' own business, and a failed one would be in the log.
        if self.tls or self.client_cert:
            assert "listening" in self.log.read_text()
            return
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=5)
        try:
            connection.request("OPTIONS", "*")
            assert connection.getresponse().status == 204
        finally:
            connection.close()

    @property
    def url(self) -> str:
        """Where to POST to, with a trailing slash."""
        return f"{'https' if self.tls or self.client_cert else 'http'}://{LOOPBACK}:{self.port}/"

    def set(self, *answers: Answer, **answer: Any) -> None:
        """Answer by these rules from the next request on; keywords make one rule, nothing at all means 200 for all."""
        rules = [*answers, Answer(**answer)] if answer else answers
        written = self.rules.with_suffix(".new")
        written.write_text(json.dumps([asdict(rule) for rule in rules]))
        written.replace(self.rules)  # a new file each time, so that the receiver sees the change by its inode

    def requests(self, path: str | None = None) -> list[Request]:
        """All requests so far in the order of their arrival, or those to one path."""
        with self.file.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):  # a kill in mid-write
                    break
                self._offset += len(line)
                entry = json.loads(line)
                self._seen.append(Request(**{**entry, "body": base64.b64decode(entry["body"])}))
        return [request for request in self._seen if path is None or request.path == path]

    def bodies(self, path: str | None = None) -> list[bytes]:
        """The bodies of `requests()`, byte for byte."""
        return [request.body for request in self.requests(path)]

    def wait(self, count: int, timeout: float = 10) -> list[Request]:
        """Return the requests as soon as there are `count`; AssertionError when they do not come in time."""
        until(lambda: len(self.requests()) >= count, timeout, what=f"{count} requests at the receiver")
        return self.requests()

    def take(self) -> list[Request]:
        """All requests so far, each only once: from here on they are forgotten."""
        taken = self.requests()
        self._seen.clear()
        return taken

    def forget(self) -> None:
        """From here on `requests()` and `wait()` count from nothing."""
        self.take()


def receiver(*, tls: bool = False, client_cert: bool = False) -> Receiver:
    """A running receiver of its own; `client_cert` demands one of the session's authority, over TLS."""
    return Receiver(tls, client_cert).start()
