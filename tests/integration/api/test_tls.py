"""TLS of the API's own: streams too, and a certificate that is renewed while it runs."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx
import psutil
import pytest

from app.config.tls import validities_of_file
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.processes import Certificate, read_certificates, read_processes
from tests import services
from tests.integration.api.conftest import S3, Api, SecureApi, url_of
from tests.services import until
from tests.support.api_requests import Listener, body
from tests.support.builders import event


@pytest.fixture
def s3(log: Database) -> Iterator[S3]:
    given = {"BUCKETWIRE_ACCESS_KEY": S3.access_key, "BUCKETWIRE_SECRET_KEY": S3.secret_key}
    with SecureApi(url_of(log), given) as secure:
        yield S3(secure.start(), log)
        secure.client.close()


@contextmanager
def listening(s3: S3) -> Iterator[Listener]:
    """A stream of all of a bucket's new objects, over TLS."""
    assert isinstance(s3.api, SecureApi)
    with (
        httpx.Client(timeout=60, verify=s3.api.trusted, trust_env=False) as client,
        closing(client.send(s3.sign("GET", "/images?events=s3:ObjectCreated:*"), stream=True)) as response,
    ):
        assert response.status_code == 200
        yield Listener(response)


def clients(api: Api) -> set[int]:
    """The ports from which the open connections come."""
    found = [one for child in psutil.Process(api.pid).children() for one in child.net_connections("tcp")]
    return {one.raddr.port for one in found if one.laddr.port == api.port and one.raddr}


def test_events_and_streams_go_over_tls_and_nothing_goes_without(s3: S3) -> None:
    assert s3.ask("PUT", "/images").status_code == 200
    before = clients(s3.api)
    with listening(s3) as stream:
        [of_stream] = clients(s3.api) - before
        assert s3.api.post(body("a", "b")).status_code == 202
        assert stream.keys(2) == ["a", "b"]
        many = [event(f"{number:04}" + "k" * 500) for number in range(4000)]
        for start in range(0, len(many), 500):
            Log(s3.database).append([many[start : start + 500]])
        assert stream.keys(4000) == [each.key for each in many], "more than any buffer holds"
    until(lambda: of_stream not in clients(s3.api), 30, what="the end of the stream")
    with httpx.Client(timeout=60, trust_env=False) as plain, pytest.raises(httpx.TransportError):
        plain.get(s3.api.url.replace("https", "http") + "/healthz")
    old = ssl.create_default_context(cafile=services.certificates().ca)
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with warnings.catch_warnings(action="ignore"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with httpx.Client(timeout=60, trust_env=False, verify=old) as outdated, pytest.raises(httpx.ConnectError):
        outdated.get(f"{s3.api.url}/healthz")
    assert "Traceback" not in s3.api.log.read_text()


def test_until_when_its_certificate_is_valid_is_known_of_an_api(s3: S3) -> None:
    def found() -> list[Certificate]:
        with s3.database.reading() as connection:
            return read_certificates(connection, read_processes(connection), now_ms())

    until(found, 30, what="its heartbeat")
    [one] = found()
    assert (one.of, one.name) == (f"api on {socket.gethostname()}", s3.api.url)
    assert one.valid == validities_of_file(str(services.certificates().cert))[0]


def test_a_renewed_certificate_is_served_without_a_restart_and_a_broken_one_is_not(s3: S3) -> None:
    api, certs = s3.api, services.certificates()
    assert isinstance(api, SecureApi)
    first = api.presented()
    assert api.client.get("/healthz").status_code == 200  # this connection stays open
    api.put(certs.other_cert, certs.other_key)
    workers = len(psutil.Process(api.pid).children())  # each looks when it is connected to
    renewed = "the TLS certificate was reloaded"
    until(lambda: api.presented() != first and api.log.read_text().count(renewed) == workers, 30)
    second = api.presented()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{api.url}/healthz", verify=api.trusted, trust_env=False, timeout=30)
    assert api.client.get("/healthz").status_code == 200, "what was open goes on"

    api.put(certs.cert, certs.other_key)  # they do not belong together: half of a renewal
    assert api.presented() == second
    api.put(certs.cert, certs.key)
    assert {api.presented() for _ in range(4)} == {first}
    api.put(certs.other_cert, certs.other_key)
    before = {child.pid for child in psutil.Process(api.pid).children()}
    os.kill(api.pid, signal.SIGHUP)
    until(lambda: before.isdisjoint(child.pid for child in psutil.Process(api.pid).children()), 60)
    assert api.presented() == second
    said = api.log.read_text()
    assert said.count(renewed) > workers
    assert "the previous one stays in use: BUCKETWIRE_TLS_CERT: " in said


def test_a_certificate_that_cannot_be_used_stops_the_start_with_a_sentence(log: Database) -> None:
    certs = services.certificates()
    api = SecureApi(url_of(log), {})
    api.put(certs.cert, certs.other_key)
    api.client.close()
    with pytest.raises(RuntimeError, match=r"BUCKETWIRE_TLS_CERT: .*api\.crt.* cannot be used with the key"):
        api.start()
    assert "Traceback" not in api.log.read_text()
