"""What a handshake failed for is said in words: no object of a library, no tuple, and never nothing."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.config import target_settings
from app.config.declared_types import source_type
from tests import services
from tests.contract.probes.base import attempt, unavailable
from tests.support import sample_events
from workers.sources import create as create_source
from workers.sources.base import SourceUnavailable
from workers.targets import create
from workers.targets.base import TargetUnavailable

SETTINGS: dict[str, Callable[[str], dict[str, str]]] = {
    "webhook": lambda place: {"endpoint": f"https://{place}/", "allow_private": "on"},
    "elasticsearch": lambda place: {"url": f"https://{place}/", "index": "i"},
    "sqs": lambda place: {
        "queue_url": f"https://{place}/0/q", "region": "eu-1", "access_key": "a", "secret_key": "b",
    },
    "kafka": lambda place: {"brokers": place, "topic": "t", "tls": "on"},
    "redis": lambda place: {"address": f"rediss://{place}", "key": "k"},
    "mqtt": lambda place: {"broker": f"tls://{place}", "topic": "t"},
    "nats": lambda place: {"address": place, "subject": "s", "tls": "on", "tls_handshake_first": "on"},
    "amqp": lambda place: {"url": f"amqps://{place}", "routing_key": "q", "mandatory": "on"},
}  # fmt: skip
IN_PLAIN: dict[str, Callable[[str], dict[str, str]]] = {  # types that say something before TLS begins
    "mysql": lambda place: {"dsn_string": f"u:p@tcp({place})/d?tls=true", "table": "t"},
    "nsq": lambda place: {"nsqd_address": place, "topic": "t", "tls": "on"},
}
SOURCES: dict[str, Callable[[str], dict[str, str]]] = {
    "amqp": lambda place: {"url": f"amqps://{place}", "queue": "q"},
    "jetstream": lambda place: {"address": place, "stream": "s", "tls": "on"},
    "kafka": SETTINGS["kafka"],
    "redis": SETTINGS["redis"],
    "sqs": SETTINGS["sqs"],
}
AUTHORITY = {"nats": "cert_authority", "jetstream": "cert_authority"}
CERTIFICATE = {"kafka": ("client_tls_cert", "client_tls_key")}
NO_WORDS = re.compile(r"\w\(host=|<\w+[. ]|0x[0-9a-f]{6}|object at|\(\d+, ['\"]|None")


@contextlib.contextmanager
def failing(fault: str, certificates: services.Certificates) -> Iterator[str]:
    """The address of a server with which no TLS comes to pass."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if fault == "unknown authority":
        context.load_cert_chain(certificates.other_cert, certificates.other_key)
    else:
        context.load_cert_chain(certificates.cert, certificates.key)
    if fault == "asks for a certificate":
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates.ca)

    def answer(wire: socket.socket) -> None:
        wire.settimeout(5)
        if fault in ("unknown authority", "asks for a certificate"):
            context.wrap_socket(wire, server_side=True).close()
            return
        wire.recv(1000)
        if fault == "no TLS":
            wire.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        if fault == "reset":
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                wire, _ = listening.accept()
                with wire, contextlib.suppress(OSError):
                    answer(wire)

    with socket.create_server((services.LOOPBACK, 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"{services.LOOPBACK}:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("content", [None, "no PEM"])
@pytest.mark.parametrize("is_source", [False, True])
def test_a_file_that_cannot_be_used_is_named_by_the_setting_of_its_type(
    tmp_path: Path, is_source: bool, content: str | None
) -> None:
    (file := tmp_path / "file.pem").write_text(content or "")
    if content is None:
        file.unlink()
    settings = SOURCES if is_source else SETTINGS | IN_PLAIN
    for type_name, values in settings.items():
        authority = AUTHORITY.get(type_name, "tls_ca")
        for names in ((authority,), CERTIFICATE.get(type_name, ("client_cert", "client_key"))):
            given = values(f"{services.LOOPBACK}:9") | dict.fromkeys(names, str(file))
            reason = failure(type_name, given, is_source=is_source)
            assert all(f"{name}: {file} " in reason or f"{name} {file} " in reason for name in names), reason


def failure(type_name: str, values: dict[str, str], *, is_source: bool) -> str:
    if not is_source:
        with closing(create(type_name, target_settings.load(type_name, values))) as target:
            with pytest.raises(TargetUnavailable) as caught:
                target.open()
            return caught.value.reason
    with closing(create_source(type_name, target_settings.load(source_type(type_name), values))) as source:
        with pytest.raises(SourceUnavailable) as refused:
            source.open({})
        return str(refused.value)


@pytest.mark.parametrize("fault", ["no TLS", "close", "reset", "unknown authority", "asks for a certificate"])
@pytest.mark.parametrize("type_name", SETTINGS)
def test_a_handshake_that_fails_is_told_in_words(
    certificates: services.Certificates, type_name: str, fault: str
) -> None:
    with failing(fault, certificates) as place:
        values = SETTINGS[type_name](place) | {
            "timeout": "2s",
            AUTHORITY.get(type_name, "tls_ca"): str(certificates.ca),
        }
        with closing(create(type_name, target_settings.load(type_name, values))) as target:
            (outcome,) = attempt(target, [sample_events.put("a")], 1)
    reason = unavailable(outcome)
    assert not NO_WORDS.search(reason)
    assert re.search(r"[a-z]{3}", reason.rpartition(place)[2]), reason
