"""A sign-in at a provider that does not answer, or without end: it costs the API few threads, and people are told."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from app.console.openid_provider import Provider
from tests.integration.console.conftest import ADMIN, TOKENS, Browser, Opened
from tests.services import LOOPBACK, until

DISCOVERY, TOKEN, KEYS = "/.well-known/openid-configuration", "/token", "/keys"
CONSOLE = "http://localhost/console/"


class HostileProvider(ThreadingHTTPServer):
    """Answers as it should, except for the paths that it drips: a byte now and then, without end."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.issuer = f"http://localhost:{self.server_port}"
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
        self.dripping: set[str] = set()
        self.endless: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.instead: dict[str, bytes] = {}
        self.logins: list[str] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.stopped = threading.Event()

    def answer(self, path: str) -> dict[str, Any]:
        names = {"authorization_endpoint": "/authorize", "token_endpoint": TOKEN, "jwks_uri": KEYS}
        description = {"issuer": self.issuer} | {name: self.issuer + value for name, value in names.items()}
        return {DISCOVERY: description, KEYS: {"keys": [self.key.as_dict(private=False)]}}.get(
            path, {"error": "invalid_grant"}
        )


class _Handler(BaseHTTPRequestHandler):
    server: HostileProvider

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.asked[self.path] += 1
            self.server.logins.append(self.headers.get("Authorization", ""))
            self.server.at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
        try:
            with suppress(OSError):
                self._answer()
        finally:
            with self.server.lock:
                self.server.at_once -= 1

    do_POST = do_GET  # noqa: N815 - the name that the library calls

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if self.path in self.server.dripping:
            while not self.server.stopped.wait(0.2):
                self.wfile.write(b" ")
        while self.path in self.server.endless:
            self.wfile.write(b" " * 65_536)
        answer = self.server.instead.get(self.path)
        self.wfile.write(json.dumps(self.server.answer(self.path)).encode() if answer is None else answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hostile() -> Iterator[HostileProvider]:
    with HostileProvider() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.stopped.set()
        server.shutdown()
        thread.join()


def settings_of(hostile: HostileProvider) -> dict[str, str]:
    return {
        "api_tokens": TOKENS, "oidc_issuer": hostile.issuer, "oidc_client_id": "x", "oidc_client_secret": "s",
        "oidc_console_url": CONSOLE, "oidc_admin": "platform",
    }  # fmt: skip


def begun(browser: Browser) -> str:
    """The way back to the console of a sign-in that has begun."""
    [state] = parse_qs(urlsplit(browser.get("openid").location).query)["state"]
    return f"openid-callback?code=x&state={state}"


def test_a_provider_that_drips_is_asked_once_and_everybody_is_told(hostile: HostileProvider, browse: Opened) -> None:
    hostile.dripping.add(DISCOVERY)
    browser = browse(**settings_of(hostile))
    with ThreadPoolExecutor(20) as people:
        clients = [browser.app.test_client() for _ in range(20)]
        pages = list(people.map(lambda client: client.get("/console/openid"), clients))
    texts = [page.get_data(as_text=True) for page in pages]
    assert [page.status_code for page in pages] == [503] * 20
    assert sum("cannot be reached: ReadTimeout" in text for text in texts) >= 1
    assert sum("has not answered others yet" in text for text in texts) >= 15, "told at once, or after a short wait"
    assert hostile.most_at_once == 1
    hostile.dripping.clear()
    asked = hostile.asked[DISCOVERY]
    assert browser.get("openid").status == 503, "that is remembered for some seconds"
    assert hostile.asked[DISCOVERY] == asked
    assert browser.sign_in(ADMIN).status == 303


def test_a_failure_is_forgotten(hostile: HostileProvider, browse: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = browse(**settings_of(hostile))
    hostile.dripping.add(DISCOVERY)
    assert browser.get("openid").status == 503
    hostile.dripping.clear()
    monkeypatch.setattr("app.console.openid_provider._FAILED", 0.0)
    assert browser.get("openid").status == 303


def test_a_token_that_drips_ends_and_the_next_is_not_asked_for(hostile: HostileProvider, browse: Opened) -> None:
    hostile.dripping.add(TOKEN)
    browser = browse(**settings_of(hostile))
    page = browser.get(begun(browser))
    assert (page.status, "does not answer: ReadTimeout" in page.text) == (502, True), page.text
    page = browser.get(begun(browser))
    assert (page.status, "does not answer: ReadTimeout" in page.text) == (502, True), page.text
    assert hostile.asked[TOKEN] == 1


def test_few_wait_for_tokens_and_a_code_that_is_refused_holds_up_nobody(
    hostile: HostileProvider, browse: Opened
) -> None:
    browsers = [browse(**settings_of(hostile)) for _ in range(12)]
    for other in browsers[1:]:
        other.client.application = browsers[0].app  # one process, many people
        other.app = browsers[0].app
    backs = [begun(browser) for browser in browsers]
    for browser, back in zip(browsers[:3], backs[:3], strict=True):
        assert "the provider refused the sign-in: invalid_grant" in browser.get(back).text
    backs[:3] = [begun(browser) for browser in browsers[:3]]
    hostile.dripping.add(TOKEN)
    hostile.most_at_once = 0
    with ThreadPoolExecutor(12) as people:
        pages = list(people.map(lambda pair: pair[0].get(pair[1]), zip(browsers, backs, strict=True)))
    assert {page.status for page in pages} == {502}
    assert sum("has not answered others yet" in page.text for page in pages) >= 6
    assert hostile.most_at_once <= 2


def test_an_answer_without_end_is_not_read(hostile: HostileProvider, browse: Opened) -> None:
    hostile.endless.add(DISCOVERY)
    page = browse(**settings_of(hostile)).get("openid")
    assert (page.status, "the answer has more than 1,048,576 bytes" in page.text) == (503, True), page.text


def test_the_doctor_does_not_wait_for_a_provider_that_drips(hostile: HostileProvider, browse: Opened) -> None:
    hostile.dripping.add(KEYS)
    browser = browse(**settings_of(hostile))

    def found() -> list[str]:
        answer = browser.client.get("/v1/doctor", headers={"Authorization": f"Bearer {ADMIN}"})
        return [one["text"] for one in answer.get_json()["findings"] if one["subject"] == "openid"]

    assert found() == [f"the provider {hostile.issuer} is being asked"]
    until(lambda: found()[0].startswith(f"the keys of the provider {hostile.issuer} cannot be read: ReadTimeout"), 30)
    assert hostile.asked[KEYS] == 1, "once a minute"


@pytest.mark.parametrize(
    ("path", "answer", "problem"),
    [
        (DISCOVERY, b"[" * 100_000, "cannot be reached: RecursionError"),
        (DISCOVERY, b'{"issuer":"' + b"x" * 900_000 + b'"}', "the provider calls itself xxx"),
        (TOKEN, b"[" * 100_000, "answer is not valid: RecursionError"),
        (TOKEN, b'{"id_token":"x","expires_in":Infinity}', "answer is not valid: OverflowError"),
        (TOKEN, b'{"error":"' + b"x" * 900_000 + b'"}', "the provider refused the sign-in: xxx"),
    ],
    ids=["a deep description", "a long issuer", "a deep token", "an endless token", "a long error"],
)
def test_an_answer_that_no_library_expects_is_said_in_a_few_words(
    hostile: HostileProvider, browse: Opened, path: str, answer: bytes, problem: str
) -> None:
    browser = browse(**settings_of(hostile))
    back = "openid" if path == DISCOVERY else begun(browser)
    hostile.instead[path] = answer
    page = browser.get(back)
    assert (page.status in (502, 503), problem in page.text, len(page.text) < 10_000) == (True, True, True), page.status


def test_tokens_with_unknown_keys_do_not_have_the_keys_asked_for_each_time(
    hostile: HostileProvider, browse: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.console.openid_provider._SEARCHED", 600.0)
    provider = Provider(browse(**settings_of(hostile)).app.extensions["bucketwire"].settings)
    key = RSAKey.generate_key(2048, {"kid": "another", "use": "sig"})
    token = jwt.encode({"alg": "RS256", "kid": "another"}, {"sub": "alice"}, key)
    for _ in range(5):
        with pytest.raises(JoseError):
            provider._verified(token)
    assert hostile.asked[KEYS] == 2, "and once more, because keys are renewed"


def test_no_login_of_a_netrc_file_is_sent(
    hostile: HostileProvider, browse: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("default login of-the-host password of-the-host\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    browser = browse(**settings_of(hostile))
    assert browser.get("openid").status == 303
    assert hostile.logins == [""]
