"""What is noted of the certificates of connections never breaks one, and is recorded once."""

from __future__ import annotations

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtensionOID, NameOID

from app.config import settings as service_settings
from app.config.tls import Validity
from app.server.api_heartbeat import ApiHeartbeat
from workers.systems.postgresql.connection import note_certificates
from workers.targets import tls
from workers.targets.tls import SeenCertificates, seen_with

END = datetime(2100, 1, 2, 3, 4, 5, tzinfo=UTC)
DAYS = 36_500
VALID = Validity(int((END - timedelta(DAYS)).timestamp() * 1000), int(END.timestamp() * 1000))
LATIN_1_URI = b"http://x/\xfc"


class Settings:
    """Any object that may be referred to weakly."""


def valid(second: int) -> Validity:
    """Return the validity of a certificate of a hundred days that ends in this second since 1970."""
    return Validity((second - 8_640_000) * 1000, second * 1000)


def certificate_with(access: bytes, folder: Path) -> tuple[Path, Path]:
    """Write a certificate for `localhost` that names this address of its authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    general = b"\x86" + bytes([len(access)]) + access
    method = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x30\x02"  # caIssuers
    described = b"\x30" + bytes([len(method + general)]) + method + general
    raw = b"\x30" + bytes([len(described)]) + described
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), END - timedelta(DAYS), END)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.UnrecognizedExtension(ExtensionOID.AUTHORITY_INFORMATION_ACCESS, raw), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "crt.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return folder / "crt.pem", folder / "key.pem"


def shake_hands(client: ssl.SSLContext, certificate: tuple[Path, Path]) -> None:
    """Have a client connect to a server with this certificate, in memory."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*certificate)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(back, there, server_hostname="localhost")
    answering = server.wrap_bio(there, back, server_side=True)
    left = [asking, answering]
    for _ in range(10):
        for one in list(left):
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                continue
            left.remove(one)
    assert not left


@pytest.mark.parametrize("access", [b"http://x/u", LATIN_1_URI])
def test_a_certificate_with_text_that_is_not_utf_8_is_noted_too(access: bytes, tmp_path: Path) -> None:
    settings, certificate = Settings(), certificate_with(access, tmp_path)
    context = tls.context(settings, str(certificate[0]))
    seen_with(settings).forget()  # the authority's
    shake_hands(context, certificate)
    assert seen_with(settings).unrecorded() == {"localhost": VALID}


def test_a_certificate_that_is_not_verified_is_not_noted(tmp_path: Path) -> None:
    settings, certificate = Settings(), certificate_with(LATIN_1_URI, tmp_path)
    shake_hands(tls.context(settings, skip_verify=True), certificate)
    assert seen_with(settings).unrecorded() == {}


def test_what_cannot_be_noted_does_not_break_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: bytes) -> Validity:
        raise x509.InvalidVersion("4 is not a valid X509 version", 4)

    settings, certificate = Settings(), certificate_with(LATIN_1_URI, tmp_path)
    monkeypatch.setattr("app.config.tls.validity_of", refuse)
    monkeypatch.setattr("app.config.tls.validities_of_file", refuse)
    shake_hands(tls.context(settings, str(certificate[0])), certificate)
    assert seen_with(settings).unrecorded() == {}


def test_an_odd_certificate_of_an_api_does_not_end_its_heartbeats(tmp_path: Path) -> None:
    file, _ = certificate_with(LATIN_1_URI, tmp_path)
    der = x509.load_pem_x509_certificate(file.read_bytes()).public_bytes(Encoding.DER)
    odd = der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05", 1)
    with pytest.raises(x509.InvalidVersion):
        x509.load_der_x509_certificate(odd)
    heartbeat = ApiHeartbeat(service_settings.Settings.from_environ({}))
    with heartbeat._lock:
        for one in (odd, b""):
            heartbeat._note_own(one)
            assert heartbeat._own() == []
        heartbeat._note_own(der)
        assert [one.valid for one in heartbeat._own()] == [VALID]


def test_only_the_ends_that_differ_from_those_recorded_are_to_be_recorded() -> None:
    seen = SeenCertificates()
    seen.note("one", valid(1))
    seen.note("two", valid(2))
    seen.recorded(seen.unrecorded())
    seen.note("two", valid(3))
    seen.note("one", valid(1))
    changed = seen.unrecorded()
    assert changed == {"two": valid(3)}, "another process may know a newer end of the other"
    seen.note("two", valid(4))
    seen.recorded(changed)
    assert seen.unrecorded() == {"two": valid(4)}, "noted while it was recorded"
    seen.recorded(seen.unrecorded())
    assert seen.unrecorded() == {}
    seen.note("two", valid(5))
    seen.note("two", valid(4))
    assert seen.unrecorded() == {}, "as it is recorded"
    seen.forget()
    seen.note("one", valid(1))
    assert seen.unrecorded() == {"one": valid(1)}


def test_a_certificate_that_ends_soon_is_looked_at_once_a_day_also_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr("workers.targets.tls.time", SimpleNamespace(monotonic=lambda: now[0], time=END.timestamp))
    seen = SeenCertificates()
    seen.note("one", Validity(0, VALID.ends_at + 86_400_000))
    assert not seen.is_stale()
    now[0] += 86_399
    assert not seen.is_stale()
    now[0] += 2
    assert seen.is_stale()
    assert not seen.is_stale(), "the connection of then showed nothing"
    now[0] += 86_401
    assert seen.is_stale()


@pytest.mark.parametrize("answer", [b"", b"N", b"S"])
def test_of_a_server_that_does_not_tell_its_certificate_the_authority_is_noted(
    answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.asked_servers._CERTIFICATE_SECONDS", 0.2)
    authority, _ = certificate_with(LATIN_1_URI, tmp_path)
    dsn = f"host=127.0.0.1 user=me dbname=d sslmode=verify-full sslrootcert={authority}"
    settings: Any = Settings()
    settings.dsn = dsn
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as used:
        first, _ = server.accept()
        connection: Any = SimpleNamespace(fileno=used.fileno, info=SimpleNamespace(ssl_in_use=True, host="127.0.0.1"))
        with first, ThreadPoolExecutor(1) as pool:
            asked = pool.submit(note_certificates, settings, connection)
            second, _ = server.accept()
            with second:
                second.sendall(answer)
                asked.result(60)
    assert seen_with(settings).unrecorded() == {"sslrootcert": VALID}


def test_one_that_is_met_again_is_recorded_again_half_a_day_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr("workers.targets.tls.time", SimpleNamespace(monotonic=lambda: now[0]))
    seen = SeenCertificates()
    seen.note("one", valid(1))
    seen.note("two", valid(2))
    seen.recorded(seen.unrecorded())
    now[0] += 43_000
    seen.note("one", valid(1))
    assert seen.unrecorded() == {}
    now[0] += 201
    assert seen.unrecorded() == {}, "not met since"
    seen.note("one", valid(1))
    assert seen.unrecorded() == {"one": valid(1)}
    seen.recorded(seen.unrecorded())
    assert seen.unrecorded() == {}


def test_one_of_a_short_life_is_looked_at_in_its_last_third_and_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic, now = [1_000_000.0], [0.0]
    clock = SimpleNamespace(monotonic=lambda: monotonic[0], time=lambda: now[0])
    monkeypatch.setattr("workers.targets.tls.time", clock)
    seen = SeenCertificates()
    seen.note("a day", Validity(0, 86_400_000))
    monotonic[0] += 3_601
    now[0] = 15 * 3_600
    assert not seen.is_stale(), "it is not to be renewed yet"
    now[0] = 17 * 3_600
    assert seen.is_stale()
    monotonic[0] += 3_599
    assert not seen.is_stale()
    monotonic[0] += 2
    assert seen.is_stale()
    seen.forget()
    seen.note("ended before it began", Validity(1000, 0))
    monotonic[0] += 59
    assert not seen.is_stale()
