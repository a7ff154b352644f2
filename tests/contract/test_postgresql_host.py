"""PostgreSQL: nothing that the account or the environment of the workers has goes to a target's server."""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from app.config.target_settings import load
from app.config.targets.postgresql import explicit
from tests import services
from tests.contract.probes import fixtures
from tests.contract.probes.postgresql import Namespace
from tests.support import sample_events
from tests.support.asking_postgres import GSS, Asking
from workers.delivery.outcomes import DELIVERED
from workers.targets import create
from workers.targets.base import TargetUnavailable

running = fixtures.running(Namespace)

# Of libpq's parameters those that have neither a variable nor a file of the account.
_WITHOUT_HOST = {
    "fallback_application_name", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
    "tcp_user_timeout", "sslpassword", "replication", "sslkeylogfile", "scram_client_key", "scram_server_key",
    "oauth_issuer", "oauth_client_id", "oauth_client_secret", "oauth_scope",
}  # fmt: skip
# They name a service's parameters, which fill only what is not given.
_OF_SERVICE = {"service", "servicefile"}


@pytest.fixture
def asking() -> Iterator[Asking]:
    server = Asking()
    yield server
    server.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificates: services.Certificates) -> Path:
    """The home of the account, with all that libpq looks for in one."""
    passwords = tmp_path / ".pgpass"
    passwords.write_text("*:*:*:*:of-the-host\n")
    passwords.chmod(0o600)
    folder = tmp_path / ".postgresql"
    folder.mkdir()
    for name, content in (("postgresql.crt", certificates.client_cert), ("postgresql.key", certificates.client_key),
                          ("root.crt", certificates.other_ca)):  # fmt: skip
        (folder / name).write_bytes(content.read_bytes())
        (folder / name).chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def opened(connection_string: str) -> str:
    """Open a target; return why that failed."""
    settings = load("postgresql", {"connection_string": connection_string, "table": "t", "timeout": "20s"})
    target = create("postgresql", settings)
    try:
        with pytest.raises(TargetUnavailable) as refused:
            target.open()
    finally:
        target.close()
    return refused.value.reason


@pytest.mark.parametrize("where", ["variable", "file", "named file"])
@pytest.mark.parametrize("more", ["", " password=''", " passfile=''"])
def test_the_hosts_password_is_not_sent(
    asking: Asking, home: Path, monkeypatch: pytest.MonkeyPatch, where: str, more: str
) -> None:
    if where == "variable":
        monkeypatch.setenv("PGPASSWORD", "of-the-host")
    elif where == "named file":
        monkeypatch.setenv("HOME", "/nowhere")
        monkeypatch.setenv("PGPASSFILE", str(home / ".pgpass"))
    reason = opened(
        f"host=db.internal hostaddr={services.LOOPBACK} port={asking.port} user=me dbname=d sslmode=disable{more}"
    )
    assert asking.startups[0]["user"] == "me"
    assert asking.sent == []
    assert "no password supplied" in reason


def test_the_hosts_certificate_is_not_shown_and_its_authority_does_not_decide(
    home: Path, certificates: services.Certificates
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    context.load_verify_locations(certificates.ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    server = Asking(context=context)
    try:
        place = f"host={services.LOOPBACK} port={server.port} user=me dbname=d"
        assert "no password supplied" in opened(f"{place} sslmode=require")
        assert server.certificates == [None]
        assert 'root certificate file "/dev/null/no-sslrootcert" does not exist' in opened(f"{place} sslmode=verify-ca")
        shown = f"{place} sslmode=require sslcert={certificates.client_cert} sslkey={certificates.client_key}"
        assert "no password supplied" in opened(shown)
        assert server.certificates[-1], "a certificate that the settings name is shown"
    finally:
        server.close()


def test_the_hosts_kerberos_tickets_are_not_used_unless_the_settings_say_so() -> None:
    server = Asking(method=GSS)
    try:
        place = f"host={services.LOOPBACK} port={server.port} user=me dbname=d sslmode=disable"
        for more in ("", " require_auth=!password"):
            assert "authentication method requirement" in opened(place + more)
        assert "authentication method requirement" not in opened(f"{place} krbsrvname=postgres")
    finally:
        server.close()


def test_without_a_user_the_account_is_named_whatever_the_environment_says(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGUSER", "PGDATABASE", "USER", "LOGNAME"):
        monkeypatch.setenv(name, "another")
    opened(f"host={services.LOOPBACK} port={asking.port} sslmode=disable")
    account = pwd.getpwuid(os.geteuid()).pw_name
    assert (asking.startups[0]["user"], asking.startups[0].get("database", account)) == (account, account)


class _Option(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_char_p) for name in ("keyword", "envvar", "compiled", "value", "label", "dispchar")),
        ("dispsize", ctypes.c_int),
    ]


def libpqs_parameters() -> dict[str, str]:
    """Every parameter of the libpq that is used, with its variable, empty for none."""
    psycopg2.extensions.libpq_version()
    [path] = {found[0] for found in re.finditer(r"/\S*/libpq\S*", Path("/proc/self/maps").read_text())}
    library = ctypes.CDLL(path)
    library.PQconndefaults.restype = ctypes.POINTER(_Option)
    options, found = library.PQconndefaults(), {}
    for number in range(1000):
        if options[number].keyword is None:
            break
        found[options[number].keyword.decode()] = (options[number].envvar or b"").decode()
    return found


def test_every_parameter_that_libpq_would_take_from_the_host_is_given() -> None:
    known = libpqs_parameters()
    assert len(known) > 30
    assert {name for name, variable in known.items() if variable} & _WITHOUT_HOST == set()
    assert set(known) - _WITHOUT_HOST - _OF_SERVICE == set(explicit({})), "a new parameter of libpq: what does it read?"


def test_no_variable_of_libpq_changes_a_connection(
    running: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.renew()
    service = tmp_path / "service.conf"
    service.write_text("[other]\nhostaddr=127.0.0.9\noptions=-csearch_path=nowhere\nsslmode=verify-full\n")
    variables = {variable: "another" for variable in libpqs_parameters().values() if variable}
    numbers = {"PGPORT": "1", "PGCONNECT_TIMEOUT": "nothing", "PGHOSTADDR": "127.0.0.9", "PGREQUIRESSL": "1"}
    for name, value in (variables | numbers).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PGSERVICE", "other")
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    assert running.delivered([sample_events.put("a")]) == [DELIVERED]
    # The probe itself connects as an operator would.
    for name in (*variables, *numbers, "PGSERVICE", "PGSERVICEFILE"):
        monkeypatch.delenv(name, raising=False)
    assert [key for key, _ in running.held()] == ["images/a"]


def test_what_an_operator_asks_of_the_host_is_used(asking: Asking, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"host={services.LOOPBACK} port={asking.port} user=me dbname=d sslmode=disable"
    opened(f"{place} passfile={home}/.pgpass")
    assert asking.sent == [b"of-the-host"]
    service = home / "service.conf"
    service.write_text(f"[ours]\n{place} password=of-the-service\n".replace(" ", "\n"))
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    opened("service=ours")
    assert asking.sent[1:] == [b"of-the-service"]
