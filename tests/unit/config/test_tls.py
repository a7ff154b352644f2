"""One meaning of a certificate on every version of Python: 3.13 makes contexts that verify strictly."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from app.config import tls

NAME = "private.test"


@pytest.fixture(params=["as here", "as in 3.13"])
def _python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = ssl.create_default_context

    def strict(*positional: str, **named: str) -> ssl.SSLContext:
        made = usual(*positional, **named)  # type: ignore[arg-type]  # as it was called
        made.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
        return made

    if request.param != "as here":
        monkeypatch.setattr(ssl, "create_default_context", strict)


class Authority:
    """An authority whose basicConstraints are not critical, and which has no key identifiers."""

    def __init__(self, name: str, issuer: Authority | None = None) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = (issuer or self).signed(self.name, self.key, x509.BasicConstraints(True, None))

    def signed(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self.name, name, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
            now + datetime.timedelta(days=1)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def server(self, folder: Path) -> ssl.SSLContext:
        """The context of a server with a certificate of this authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
        certificate = self.signed(subject, key, x509.SubjectAlternativeName([x509.DNSName(NAME)]))
        pem = certificate.public_bytes(Encoding.PEM) + self.certificate.public_bytes(Encoding.PEM)
        pem += key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "server.pem").write_bytes(pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        return context

    def file(self, folder: Path) -> str:
        (folder / "ca.pem").write_bytes(self.certificate.public_bytes(Encoding.PEM))
        return str(folder / "ca.pem")


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """TLS between the two, in memory. Raises `ssl.SSLError`."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=NAME),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].version()


@pytest.mark.usefixtures("_python")
def test_an_authority_without_critical_extensions_is_trusted(tmp_path: Path) -> None:
    authority = Authority("root")
    handshake(tls.context(authority.file(tmp_path)), authority.server(tmp_path))


@pytest.mark.usefixtures("_python")
def test_an_intermediate_authority_is_enough(tmp_path: Path) -> None:
    intermediate = Authority("intermediate", issuer=Authority("root"))
    handshake(tls.context(intermediate.file(tmp_path)), intermediate.server(tmp_path))


@pytest.mark.usefixtures("_python")
def test_another_authority_is_not_trusted(tmp_path: Path) -> None:
    ca = Authority("other").file(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls.context(ca), Authority("root").server(tmp_path))
