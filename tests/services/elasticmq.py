"""ElasticMQ, a server of the protocol of SQS, and a gateway before it that asks for a login and offers TLS."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests import provision
from tests.services.certificates import certificates
from tests.services.java import JavaServer, as_file
from tests.services.server_process import LOOPBACK, PASSWORD, USER, free_port

REGION = "us-east-1"


@dataclass(eq=False)
class ElasticMq(JavaServer):
    """The server. It has no login, and forgets everything when it ends."""

    name: ClassVar[str] = "elasticmq"
    patience: ClassVar[float] = 90

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/"

    def jars(self) -> Sequence[Path]:
        return [as_file(provision.ELASTICMQ / "launcher"), *sorted(provision.ELASTICMQ.glob("*.jar"))]

    def argv(self) -> Sequence[str | Path]:
        return self.serving("-Xmx128m", main="ElasticMq", arguments=[str(self.port)])

    def ping(self) -> None:
        self.ask("ListQueues")

    def ask(self, action: str, **asked: Any) -> Any:
        """What the server answers to a request of the protocol."""
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        request = urllib.request.Request(self.url, data=json.dumps(asked).encode(), headers=headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"{}")

    def create(self, name: str) -> str:
        """Create a queue, if there is none of this name, and return its URL."""
        attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        return str(self.ask("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"])


class Gateway:
    """Forwards requests to an ElasticMQ that USER and PASSWORD have signed, as AWS checks them; others get 403."""

    def __init__(self, server: ElasticMq, *, tls: bool = False) -> None:
        self.port = free_port()
        self.requests: list[dict[str, Any]] = []  # the bodies, in the order in which they came
        gateway = self

        class Forwarding(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                gateway.requests.append(json.loads(body))
                if not _is_signed(self, body, "https" if tls else "http"):
                    words = {"__type": "com.amazon.coral.service#InvalidClientTokenId", "message": "not with this key"}
                    self.answer(403, json.dumps(words).encode())
                    return
                forwarded = http.client.HTTPConnection(LOOPBACK, server.port, timeout=10)
                try:
                    forwarded.request("POST", "/", body, dict(self.headers.items()))
                    answer = forwarded.getresponse()
                    self.answer(answer.status, answer.read())
                finally:
                    forwarded.close()

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *words: Any) -> None:  # noqa: A002 (the library's name)
                """Say nothing."""

        self._server = ThreadingHTTPServer((LOOPBACK, self.port), Forwarding)
        self._server.daemon_threads = True
        if tls:
            certs = certificates()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certs.cert, certs.key)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _is_signed(request: BaseHTTPRequestHandler, body: bytes, scheme: str) -> bool:
    """Whether the request bears the signature that the secret gives for what came in."""
    given = request.headers["Authorization"] or ""
    named = {part.partition("=")[0]: part.partition("=")[2] for part in given.partition(" ")[2].split(", ")}
    signed = {name: request.headers[name] for name in named.get("SignedHeaders", "").split(";") if name}
    rebuilt = AWSRequest("POST", f"{scheme}://{request.headers['Host']}/", headers=signed, data=body)
    rebuilt.context["timestamp"] = request.headers["X-Amz-Date"] or ""
    signer = SigV4Auth(Credentials(USER, PASSWORD), "sqs", REGION)
    canonical = signer.canonical_request(rebuilt)
    expected = signer.signature(signer.string_to_sign(rebuilt, canonical), rebuilt)
    return named.get("Credential", "").startswith(f"{USER}/") and named.get("Signature") == expected


def elasticmq() -> ElasticMq:
    """A running server of its own."""
    return ElasticMq().start()
