"""The sign-in with Keycloak: what its people and its operators see, and what the documentation says of it."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.integration.console.conftest import Browser, Opened, Page
from tests.integration.console.openid_sign_in import CONSOLE, at_provider, back, checked, settings_of, sign_in
from tests.services.openid import Keycloak

pytestmark = pytest.mark.nightly("the sign-in with another provider, in `test_openid.py`")
PAGE = (Path(__file__).parents[3] / "docs/how-to/console.md").read_text()
OF_THE_ADDRESS = "the provider refused the sign-in, says the address of this page"
NO_VALUE = "the claim groups has no value that gives access: platform or auditors"


@pytest.fixture(scope="module")
def keycloak() -> Iterator[Keycloak]:
    with Keycloak(f"{CONSOLE}openid-callback") as running:
        yield running.start()


def of_client(keycloak: Keycloak, name: str, **more: str) -> dict[str, str]:
    return settings_of(keycloak, oidc_client_id=name, **more)


def its_page(keycloak: Keycloak, browser: Browser) -> str:
    """The text of the page to which the console leads, where that is an error."""
    with keycloak.browser() as at_keycloak:
        answer = at_keycloak.get(browser.get("openid").location)
    assert answer.status_code == 400
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", answer.text)).split())


@pytest.mark.parametrize(
    ("client", "person", "changed", "status", "said"),
    [
        ("bucketwire", "alice", {}, 200, ""),
        ("bucketwire", "bob", {}, 200, ""),
        ("public", "alice", {"oidc_client_secret": ""}, 200, ""),
        ("bucketwire", "carol", {}, 403, NO_VALUE),
        ("bucketwire", "dave", {}, 403, "the claim groups is missing"),  # and not empty
        ("without-mapper", "alice", {}, 403, "the claim groups is missing"),
        ("paths", "alice", {}, 403, NO_VALUE),
        ("paths", "alice", {"oidc_admin": "/platform"}, 200, ""),
        ("signs-by-secret", "alice", {}, 502, "the provider's answer is not valid: UnsupportedAlgorithmError"),
        ("bucketwire", "alice", {"oidc_client_secret": "x"}, 502, "refused the sign-in: unauthorized_client"),
        ("bucketwire", "alice", {"oidc_client_secret": ""}, 502, "refused the sign-in: unauthorized_client"),
        ("bucketwire", "alice", {"oidc_scope": "openid nonsense"}, 403, f"{OF_THE_ADDRESS}: invalid_scope"),
    ],
)
def test_each_mistake_is_called_by_its_name(
    keycloak: Keycloak, browse: Opened, client: str, person: str, changed: dict[str, str], status: int, said: str
) -> None:
    browser = browse(**of_client(keycloak, client, **changed))
    page = sign_in(keycloak, browser, person)
    assert (page.status, said in page.text) == (status, True), page.text
    if status == 200:
        assert f"user {person}" in browser.get("").text
        assert ("read only" in browser.get("").text) == (person == "bob")


def test_who_does_not_consent_is_not_signed_in(keycloak: Keycloak, browse: Opened) -> None:
    asks = of_client(keycloak, "asks-people")
    browser = browse(**asks)
    query = keycloak.sign_in(browser.get("openid").location, "alice", consents=False).removeprefix(keycloak.callback)
    page = back(browser, query)
    assert (page.status, f"{OF_THE_ADDRESS}: access_denied" in page.text) == (403, True), page.text
    assert sign_in(keycloak, browse(**asks), "alice").status == 200


def test_what_keycloak_says_itself_is_in_the_table(keycloak: Keycloak, browse: Opened) -> None:
    elsewhere = browse(**settings_of(keycloak, oidc_console_url="http://localhost/ops/console/"))
    for browser, said in (
        (elsewhere, "Invalid parameter: redirect_uri"),
        (browse(**of_client(keycloak, "nobody")), "Client not found."),
    ):
        assert said in its_page(keycloak, browser)
        assert f"`{said}`" in PAGE


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("{}/", "differs in the / at its end: set BUCKETWIRE_OIDC_ISSUER to what it calls itself"),
        ("{}x", "cannot be reached: HTTPError"),
    ],
)
def test_a_wrong_issuer_is_called_so(keycloak: Keycloak, browse: Opened, changed: str, said: str) -> None:
    wrong = changed.format(keycloak.issuer)
    page = browse(**settings_of(keycloak, oidc_issuer=wrong)).get("openid")
    assert (page.status, said in page.text) == (503, True), page.text
    assert checked(keycloak, oidc_issuer=wrong)[0][0] == "warning"
    register = f"the redirect address to register at the provider is {keycloak.callback}"
    assert checked(keycloak) == [("ok", f"{keycloak.issuer} answers and has keys; {register}")]


@pytest.mark.parametrize(("seconds", "differs"), [(7200, "2.0 h behind"), (-600, "10.0 m ahead of")])
def test_a_wrong_clock_is_called_so_though_no_answer_of_keycloak_has_a_time(
    keycloak: Keycloak, browse: Opened, monkeypatch: pytest.MonkeyPatch, seconds: int, differs: str
) -> None:
    clock = SimpleNamespace(time=lambda: time.time() + seconds, monotonic=time.monotonic)
    monkeypatch.setattr("app.console.openid_provider.time", clock)
    page = sign_in(keycloak, browse(**settings_of(keycloak)), "alice")
    said = f"has made a token {differs} the clock of this host: set the one that is wrong"
    assert (page.status, said in page.text) == (502, True), page.text


def test_another_account_is_reached_by_restart_login_and_signing_out_here_ends_nothing_there(
    keycloak: Keycloak, browse: Opened
) -> None:
    browser = browse(**settings_of(keycloak))

    def through(known: httpx.Client, person: str, path: str = "openid") -> Page:
        query = keycloak.sign_in(browser.get(path).location, person, known).removeprefix(keycloak.callback)
        return back(browser, query)

    with keycloak.browser() as known:
        assert "carol is known to" in through(known, "carol").text
        assert "carol is known to" in through(known, "alice").text, "Keycloak does not ask"
        asked = known.get(browser.get("openid?other=1").location).text
        assert 'value="carol"' in asked, "it asks for the password of the account that it knows"
        [restart] = re.findall(r'aria-label="Restart login"[^>]*location\.href=\'([^\']+)\'', asked)
        again = known.get(f"http://localhost:{keycloak.port}{html.unescape(restart)}")
        query = keycloak.sign_in(str(again.headers["Location"]), "alice", known).removeprefix(keycloak.callback)
        assert back(browser, query).status == 200
        assert "user alice" in browser.get("").text
        assert browser.post("sign-out", "").status == 303
        assert browser.get("").status == 303
        assert through(known, "bob").status == 200
        assert "user alice" in browser.get("").text, "Keycloak has signed her in without asking"
    assert "*Restart login*" in PAGE


def test_a_new_secret_and_a_group_that_is_taken_away_count_from_the_next_sign_in(
    keycloak: Keycloak, browse: Opened
) -> None:
    signed_in = browse(**of_client(keycloak, "rotated"))
    query = at_provider(keycloak, signed_in, "erin")
    assert back(signed_in, query).status == 200
    with keycloak.administrator() as admin:
        [client] = admin.get("clients", params={"clientId": "rotated"}).json()
        secret = admin.post(f"clients/{client['id']}/client-secret").raise_for_status().json()["value"]
        refused = sign_in(keycloak, browse(**of_client(keycloak, "rotated")), "erin")
        assert (refused.status, "refused the sign-in: unauthorized_client" in refused.text) == (502, True)
        rotated = of_client(keycloak, "rotated", oidc_client_secret=secret)
        assert sign_in(keycloak, browse(**rotated), "erin").status == 200
        [group] = admin.get("users/erin/groups").json()
        admin.delete(f"users/erin/groups/{group['id']}").raise_for_status()
    assert sign_in(keycloak, browse(**rotated), "erin").status == 403
    assert signed_in.get("").status == 200
