"""The test session's own certificate authority and what it has signed, as PEM files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tests.services.server_process import LOOPBACK, new_folder


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files. `other_*` come from an authority that nobody here trusts."""

    ca: Path
    cert: Path
    key: Path
    client_cert: Path
    client_key: Path
    other_ca: Path
    other_cert: Path
    other_key: Path


@cache
def certificates() -> Certificates:
    """The session's certificates: the server's for localhost, the client's with common name `client`."""
    folder = new_folder("certificates")
    # RSA, because MySQL 8.0.12 and old Erlangs are choosy about elliptic curves.
    ours, others = (trustme.CA(key_type=trustme.KeyType.RSA) for _ in range(2))
    ours.cert_pem.write_to_path(str(folder / "ca.crt"))
    others.cert_pem.write_to_path(str(folder / "other-ca.crt"))
    for name, authority in (("server", ours), ("client", ours), ("other", others)):
        leaf = authority.issue_cert("localhost", LOOPBACK, "::1", common_name=name, key_type=trustme.KeyType.RSA)
        # Java reads PKCS#8 only, and trustme writes the older form.
        key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / f"{name}.key").write_bytes(pem)
        for index, blob in enumerate(leaf.cert_chain_pems):
            blob.write_to_path(str(folder / f"{name}.crt"), append=index > 0)
        (folder / f"{name}.key").chmod(0o600)
    return Certificates(
        ca=folder / "ca.crt",
        cert=folder / "server.crt",
        key=folder / "server.key",
        client_cert=folder / "client.crt",
        client_key=folder / "client.key",
        other_ca=folder / "other-ca.crt",
        other_cert=folder / "other.crt",
        other_key=folder / "other.key",
    )
