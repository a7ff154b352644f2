"""The HTTP client of `--url` and of the Spark jobs, against a server that records what it gets."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from app.cli_common.api_session import ApiSession, ApiUnavailable, InvalidUrl
from tests import services


class Recorder(ThreadingHTTPServer):
    """Answers `/moved` with a redirect to `/elsewhere`, and everything else with 200."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((services.LOOPBACK, 0), Handler)
        self.requests: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Records path and Authorization of each request."""

    server: Recorder

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["Authorization"]))
        self.send_response(307 if self.path == "/moved" else 200)
        if self.path == "/moved":
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Recorder]:
    with Recorder() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_netrc_file_neither_adds_a_login_nor_replaces_the_token(
    server: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password s3cret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for token in ("", "of-the-operator"):
        session = ApiSession(server.url, token)
        session.request("GET", "/v1/status")
        session.close()
    assert [login for _, login in server.requests] == [None, "Bearer of-the-operator"]


def test_a_redirect_is_not_followed(server: Recorder) -> None:
    session = ApiSession(f"{server.url}/")
    assert session.request("GET", "/moved").status_code == 307
    session.close()
    assert [path for path, _ in server.requests] == ["/moved"]


def test_ssl_cert_file_names_the_authorities_whatever_other_variable_is_set(
    server: Recorder, certificates: services.Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates.ca))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    for known, trusted in (("", True), (certificates.other_ca, False), (certificates.ca, True)):
        if known:
            monkeypatch.setenv("SSL_CERT_FILE", str(known))
        session = ApiSession(server.url.replace("http:", "https:"))
        if trusted:
            assert session.request("GET", "/v1/status").status_code == 200
        else:
            with pytest.raises(ApiUnavailable, match=r"certificate verify failed.*set SSL_CERT_FILE to"):
                session.request("GET", "/v1/status")
        session.close()


def test_an_intermediate_authority_is_enough_on_every_version_of_python(
    server: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intermediate = trustme.CA().create_child_ca()
    intermediate.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    intermediate.issue_cert("localhost").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    session = ApiSession(server.url.replace("http:", "https:"))
    assert session.request("GET", "/v1/status").status_code == 200
    session.close()


def test_a_login_in_the_url_is_in_no_error() -> None:
    session = ApiSession(f"http://me:s3cret@{services.LOOPBACK}:{services.free_port()}")
    with pytest.raises(ApiUnavailable) as unavailable:
        session.request("GET", "/v1/status")
    session.close()
    with pytest.raises(InvalidUrl) as invalid:
        ApiSession("http://me:s3cret@host:port")
    for error in (unavailable, invalid):
        assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("url", ["", "localhost:8730", "ftp://localhost", "http://", "http://[::1", "http://host:port"])
def test_an_invalid_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidUrl, match="write http://host:8730"):
        ApiSession(url)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "nobody.invalid", "a b:80", "b\u00fc..cher"])
def test_a_server_that_cannot_be_reached_is_unavailable(host: str) -> None:
    session = ApiSession(f"http://{host}", timeout=5)
    with pytest.raises(ApiUnavailable) as caught:
        session.request("GET", "/v1/status")
    session.close()
    assert str(caught.value).startswith(f"http://{host} does not answer: ")
    assert "Connection" not in str(caught.value).partition(": ")[2][:14], "no class names of a library"
