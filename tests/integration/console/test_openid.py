"""The sign-in with a real OpenID Connect provider: whom it lets in, with what rights, and what it refuses."""

from __future__ import annotations

import base64
import hmac
import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
import sqlalchemy as sa
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from app.config.errors import BadSettings
from app.config.settings import Settings
from app.console.openid_discovery import account_prompt, answered_at, describe_wrong_time
from app.console.openid_provider import Provider, key_problems
from app.console.session import FLOW_COOKIE, Person, granted, identity, lacking, scopes
from app.outbox import tables
from app.outbox.audit import AuditFilter, entries
from app.outbox.engine.database import Database
from tests.integration.console.conftest import ADMIN, TOKENS, Opened
from tests.integration.console.openid_sign_in import CONSOLE, at_provider, back, checked, settings_of, sign_in
from tests.services import free_port, until
from tests.services.openid import Keycloak, OpenIdProvider, openid_provider
from tests.services.openid import Provider as AnyProvider
from tests.support.builders import add_target, registry

ROOT = Path(__file__).parents[3]
OF_OTHERS = (  # what libraries and providers say
    "JSONDecodeError", "ReadTimeout", "Invalid parameter", "Client not found.", "unauthorized_client",
)  # fmt: skip


@pytest.fixture(scope="module")
def provider() -> Iterator[OpenIdProvider]:
    with openid_provider(f"{CONSOLE}openid-callback") as running:
        yield running


ON_KEYCLOAK = pytest.mark.nightly("the same with oidc-provider")


@pytest.fixture(scope="module", params=["oidc-provider", pytest.param("keycloak", marks=ON_KEYCLOAK)])
def each_provider(request: pytest.FixtureRequest) -> Iterator[AnyProvider]:
    """A provider of each kind."""
    callback = f"{CONSOLE}openid-callback"
    with Keycloak(callback) if request.param == "keycloak" else OpenIdProvider(callback) as running:
        yield running.start()


def test_an_administrator_signs_in_and_the_audit_log_names_the_person(
    each_provider: AnyProvider, browse: Opened, database: Database
) -> None:
    add_target(database, "audit")
    browser = browse(**settings_of(each_provider))
    page = browser.get("events?bucket=images")
    asked = browser.get(page.location.removeprefix("./"))
    [link] = [given["href"] for given in asked.all("a") if "openid" in given["href"]]
    page = browser.get(link.removeprefix("./"))
    query = {name: values[0] for name, values in parse_qs(urlsplit(page.location).query).items()}
    assert (query["response_type"], query["code_challenge_method"]) == ("code", "S256")
    assert query["redirect_uri"] == each_provider.callback
    assert set(query["scope"].split()) == {"openid", "profile", "email"}
    assert len(query["state"]) >= 43
    assert len({query["state"], query["nonce"], query["code_challenge"]}) == 3
    [cookie] = page.response.headers.getlist("Set-Cookie")
    for part in ("HttpOnly", "SameSite=Lax", "Max-Age=600"):
        assert part in cookie
    assert query["state"] not in cookie
    page = back(browser, each_provider.sign_in(page.location, "alice").removeprefix(each_provider.callback))
    assert page.status == 200, page.text
    [refresh] = [given["content"] for given in page.all("meta") if given.get("http-equiv") == "refresh"]
    assert refresh == "0; url=./events?bucket=images"
    cookies = {each.partition("=")[0]: each for each in page.response.headers.getlist("Set-Cookie")}
    assert "SameSite=Strict" in cookies["bucketwire_console"]
    assert "Max-Age=0" in cookies[FLOW_COOKIE]
    page = browser.get("")
    assert "user alice" in page.text
    assert "read only" not in page.text
    assert browser.post("targets/webhook/audit/pause", "targets/webhook/audit").status == 303
    assert registry(database).targets()[0].state == "paused"
    assert f"openid:{each_provider.issuer}#alice (alice)" in browser.get("audit").text
    assert browser.get("tokens").status == 200
    thief = browser.presenting(browser.cookie)
    assert thief.get("").status == 200
    for path in ("/v1/targets", "/v1/audit"):
        assert thief.client.get(path, headers=thief.headers).status_code == 401
    assert browser.post("sign-out", "").status == 303
    assert browser.get("").status == 303
    assert thief.get("").status == 303


def test_two_people_who_are_called_the_same_are_two(
    provider: OpenIdProvider, browse: Opened, database: Database
) -> None:
    add_target(database, "audit")
    people = "alice", "another alice"
    for person in people:
        browser = browse(**settings_of(provider))
        assert sign_in(provider, browser, person).status == 200
        assert "user alice" in browser.get("").text
        assert browser.post("targets/webhook/audit/pause", "targets/webhook/audit").status == 303
    with database.reading() as connection:
        assert len(set(connection.execute(sa.select(tables.console_sessions.c.subject)).scalars())) == len(people)
    found = [one.actor.name for one in entries(database, AuditFilter(actions=["target.pause"]), limit=10)]
    keys = [f"openid:{provider.issuer}#{subject}" for subject in ("another%20alice", "alice")]
    assert found == [f"{key} (alice)" for key in keys]
    for key in keys:
        assert len(entries(database, AuditFilter(actor=key, actions=["target.pause"]), limit=10)) == 1
    assert entries(database, AuditFilter(actor="openid:"), limit=10) == []


def test_a_person_has_one_key_however_long_the_subject_is() -> None:
    people = [
        Person("https://id.example", subject, "x", ()) for subject in ("a" * 255, "a" * 254 + "b", "a (b)", "é/#")
    ]
    assert len({person.key for person in people}) == len(people)
    assert all(len(person.key) <= 200 and " " not in person.key for person in people)
    assert people[2].key == "https://id.example#a%20%28b%29"


def test_the_claim_decides_what_a_person_may_do(provider: OpenIdProvider, browse: Opened) -> None:
    browser = browse(**settings_of(provider))
    assert sign_in(provider, browser, "bob").status == 200
    assert "read only" in browser.get("").text
    assert browser.get("audit").status == 403
    for person, detail in (
        ("carol", "the claim groups has no value that gives access: platform or auditors."),
        ("dave", "the claim groups is missing: platform or auditors."),
        ("eve<script>", "eve<script> is known to"),  # one text, and not the two groups in it
    ):
        browser = browse(**settings_of(provider))
        page = sign_in(provider, browser, person)
        assert page.status == 403
        assert detail in page.text
        assert "<script>" not in page.response.get_data(as_text=True).partition("<body>")[2]
        assert browser.get("").status == 303
    everybody = browse(**settings_of(provider, oidc_read="*"))
    assert sign_in(provider, everybody, "dave").status == 200
    assert "read only" in everybody.get("").text


def test_who_lacks_the_group_chooses_another_account_though_the_provider_knows_the_browser(
    provider: OpenIdProvider, browse: Opened
) -> None:
    browser = browse(**settings_of(provider))
    with provider.browser() as known:
        page = browser.get("openid?next=events?bucket=images")
        page = back(browser, provider.sign_in(page.location, "carol", known).removeprefix(provider.callback))
        assert "carol is known to" in page.text
        [again] = [given["href"] for given in page.all("a") if "other=1" in given["href"]]
        [plain] = [given["href"] for given in page.all("a") if "sign-in" in given["href"]]
        assert again.startswith("./openid?")
        assert plain == "./sign-in?next=events%3Fbucket%3Dimages"
        same = browser.get("openid")
        page = back(browser, provider.sign_in(same.location, "alice", known).removeprefix(provider.callback))
        assert "carol is known to" in page.text, "the provider does not ask"
        other = browser.get(again.removeprefix("./"))
        assert parse_qs(urlsplit(other.location).query)["prompt"] == ["login"]
        page = back(browser, provider.sign_in(other.location, "alice", known).removeprefix(provider.callback))
    assert page.status == 200, page.text
    [refresh] = [given["content"] for given in page.all("meta") if given.get("http-equiv") == "refresh"]
    assert refresh == "0; url=./events?bucket=images"
    assert "user alice" in browser.get("").text


@pytest.mark.parametrize(
    ("description", "prompt"),
    [
        ({}, "login"),
        ({"prompt_values_supported": ["none", "login", "select_account"]}, "select_account"),
        ({"prompt_values_supported": ["none", "login"]}, "login"),
        ({"prompt_values_supported": "select_account"}, "login"),
        ({"issuer": "https://accounts.google.com"}, "select_account"),
    ],
)
def test_a_provider_is_asked_for_another_account_in_a_way_that_it_knows(
    description: dict[str, Any], prompt: str
) -> None:
    assert account_prompt(description) == prompt


def test_groups_that_give_access_are_named_and_addresses_of_people_are_not() -> None:
    groups = Settings(oidc_admin=("a", "b"), oidc_read=("b", "c", "d", "e", "f", "g"))
    assert lacking(groups, {"groups": []}).endswith("gives access: a or b or c or d or e or 2 more")
    people = Settings(oidc_claim="email", oidc_admin=("boss@ops.example",))
    assert lacking(people, {"email": "x"}) == "the claim email has no value that gives access"


def test_a_session_has_the_rights_that_the_settings_give_it_now(each_provider: AnyProvider, browse: Opened) -> None:
    first = browse(**settings_of(each_provider))
    sign_in(each_provider, first, "alice")
    for change, status in (
        ({}, 200),
        ({"oidc_admin": "others"}, 303),
        ({"oidc_issuer": "https://other.example"}, 303),
        (dict.fromkeys(("oidc_issuer", "oidc_client_id", "oidc_client_secret", "oidc_console_url"), ""), 303),
    ):
        other = browse(**settings_of(each_provider, **change))
        other.client = first.client
        other.client.application = other.app
        assert other.get("").status == status, change
    less = browse(**settings_of(each_provider, oidc_admin="others", oidc_read="platform"))
    sign_in(each_provider, less, "alice")
    assert less.get("audit").status == 403


def test_a_sign_in_is_used_once_in_the_browser_that_has_begun_it(
    each_provider: AnyProvider, browse: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, other = browse(**settings_of(each_provider)), browse(**settings_of(each_provider))
    query = at_provider(each_provider, browser, "alice")
    assert back(other, query).status == 400  # begun elsewhere: somebody would be signed in as another person
    at_provider(each_provider, other, "bob")
    assert back(other, query).status == 400
    assert other.get("").status == 303
    assert back(browser, query).status == 200
    assert back(browser, query).status == 400
    late = browse(**settings_of(each_provider))
    query, now = at_provider(each_provider, late, "alice"), time.time()
    monkeypatch.setattr("app.console.session.time.time", lambda: now + 601)
    assert back(late, query).status == 400


@pytest.mark.parametrize(
    ("changed", "status", "problem"),
    [
        ({"nonce": "another"}, 502, "the provider's answer is not valid"),
        ({"verifier": "v" * 64}, 502, "the provider refused the sign-in: invalid_grant"),
        ({}, 200, ""),
    ],
)
def test_nonce_and_verifier_are_those_of_this_sign_in(
    each_provider: AnyProvider, browse: Opened, changed: dict[str, str], status: int, problem: str
) -> None:
    from app.console.session import Seals

    browser = browse(**settings_of(each_provider))
    query = at_provider(each_provider, browser, "alice")
    seals = Seals(browser.app.extensions["bucketwire"].sealer)
    [cookie] = [each.value for each in browser.client._cookies.values() if each.key == FLOW_COOKIE]
    held = seals._unseal("console flow", cookie)
    assert held is not None
    kept = {name: held[name] for name in ("state", "nonce", "verifier", "following")} | changed
    browser.client.set_cookie(FLOW_COOKIE, seals._seal("console flow", 600, **kept), path="/console")
    page = back(browser, query)
    assert (page.status, problem in page.text) == (status, True), page.text


def test_what_the_provider_refuses_is_said(provider: OpenIdProvider, browse: Opened) -> None:
    browser = browse(**settings_of(provider))
    state = parse_qs(urlsplit(browser.get("openid").location).query)["state"][0]
    page = back(browser, f"?state={state}&error=access_denied&error_description=<b>no</b>")
    assert page.status == 403
    assert "the provider refused the sign-in, says the address of this page: access_denied <b>no</b>" in page.text
    assert "<b>no</b>" not in page.response.get_data(as_text=True)
    state = parse_qs(urlsplit(browser.get("openid").location).query)["state"][0]
    page = back(browser, f"?state={state}&code=x&iss=https://evil.example")
    assert (page.status, "another provider has answered" in page.text) == (502, True)
    wrong = browse(**settings_of(provider, oidc_client_secret="wrong-secret"))
    page = sign_in(provider, wrong, "alice")
    assert (page.status, "refused the sign-in: invalid_client" in page.text) == (502, True)


def test_sign_ins_and_refusals_are_in_the_log_and_the_audit_log_with_the_person_and_the_reason(
    provider: OpenIdProvider, browse: Opened, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bucketwire.api")
    assert sign_in(provider, browse(**settings_of(provider)), "alice").status == 200
    assert sign_in(provider, browse(**settings_of(provider)), "carol").status == 403
    wrong = browse(**settings_of(provider, oidc_client_secret="wrong-secret"))
    assert sign_in(provider, wrong, "alice").status == 502
    assert back(wrong, "?state=secret&code=secret").status == 400
    state = parse_qs(urlsplit(wrong.get("openid").location).query)["state"][0]
    said = quote("access_denied"), quote("the user is\n\x1b[31mnot assigned." + "x" * 5_000)
    assert back(wrong, f"?state={state}&error={said[0]}&error_description={said[1]}").status == 403

    def audited() -> list[tuple[str, str, str | None]]:
        found = entries(database, AuditFilter(actions=["session.begin", "session.refuse"]), limit=10)
        return sorted((one.action, one.actor.name, one.details.get("reason")) for one in found)

    alice, carol = (f"openid:{provider.issuer}#{person} ({person})" for person in ("alice", "carol"))
    expected = [
        ("session.begin", alice, None), ("session.refuse", carol, "openid-claim"),
        ("session.refuse", "unknown", "openid-failed"), ("session.refuse", "unknown", "openid-refused"),
        ("session.refuse", "unknown", "openid-state"),
    ]  # fmt: skip
    until(lambda: len(audited()) == len(expected), 30)
    assert audited() == sorted(expected, key=lambda entry: (entry[0], entry[1], entry[2] or ""))
    text = "\n".join(caplog.messages)
    for said in (
        f"{alice} has signed in to the console from an unknown address",
        f"(403, openid-claim): {carol} has no value of the claim that gives access",
        "(502, openid-failed): the sign-in at the provider could not be ended: ",
        "(400, openid-state)",
        "(403, openid-refused): the browser came back without a sign-in, with these words in its request: ",
        "access_denied the user is \\x1b[31mnot assi",
    ):
        assert said in text, text
    assert "secret" not in text
    assert "x" * 300 not in text
    [refused] = [
        one.details["fact"]
        for one in entries(database, AuditFilter(actions=["session.refuse"]), limit=10)
        if one.details["reason"] == "openid-refused"
    ]
    assert refused.startswith("access_denied the user is \\x1b[31mnot assigned.x")
    assert len(refused) < 300


@pytest.mark.parametrize(("seconds", "differs"), [(7200, "2.0 h ahead of"), (-600, "10.0 m behind")])
def test_a_clock_of_this_host_that_is_wrong_is_called_so(
    provider: OpenIdProvider,
    browse: Opened,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    seconds: int,
    differs: str,
) -> None:
    clock = SimpleNamespace(time=lambda: time.time() + seconds, monotonic=time.monotonic)
    monkeypatch.setattr("app.console.openid_provider.time", clock)
    page = sign_in(provider, browse(**settings_of(provider)), "alice")
    said = f"the clock of this host is {differs} that of the provider {provider.issuer} ("
    assert (page.status, said in page.text) == (502, True), page.text
    until(lambda: any("openid-clock" in line and said in line for line in caplog.messages), 30)


def test_a_clock_that_makes_tokens_and_is_not_that_of_the_providers_answers_is_called_so(browse: Opened) -> None:
    with openid_provider(f"{CONSOLE}openid-callback", ahead=5400) as shifted:
        page = sign_in(shifted, browse(**settings_of(shifted)), "alice")
    said = "has made a token 1.5 h ahead of the clocks of this host and of its own answers"
    assert (page.status, said in page.text) == (502, True), page.text


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("claims", "answered", "said"),
    [
        ({"iat": NOW, "exp": NOW + 300}, 0, ""),
        ({"iat": NOW + 60, "nbf": NOW + 60, "exp": NOW - 60}, 60, ""),
        ({"iat": NOW + 90, "exp": NOW + 300}, 90, "this host is 1.5 m behind that of"),
        ({"iat": NOW, "nbf": NOW + 90, "exp": NOW + 300}, None, "a token 1.5 m ahead of the clock of this host"),
        ({"iat": NOW - 600, "exp": NOW - 300}, -600, "this host is 10.0 m ahead of that of"),
        ({"iat": NOW - 600, "exp": NOW - 300}, 0, "a token 10.0 m behind the clocks of this host and of its own"),
        ({"iat": NOW, "exp": NOW - 300}, 0, "a token that expired 5.0 m before: look at the lifetime"),
        ({"iat": True, "exp": "x"}, 0, ""),
    ],
)
def test_what_is_wrong_with_the_times_of_a_token_is_said(
    claims: dict[str, Any], answered: float | None, said: str
) -> None:
    text = describe_wrong_time("https://id.example", claims, NOW, answered if answered is None else NOW + answered)
    assert said in text
    assert bool(text) is bool(said), text


def test_the_time_of_an_answer_is_that_of_its_server() -> None:
    at = "Fri, 15 Jan 2027 08:00:00 GMT"
    for headers, expected in (
        ({"Date": at}, NOW), ({"Date": at, "Age": "60"}, NOW + 60), ({"Date": at, "Age": "x"}, NOW), ({}, None),
        ({"Date": "yesterday"}, None), ({"Date": at.replace("GMT", "-0000")}, NOW),
    ):  # fmt: skip
        assert answered_at(headers) == expected, headers


def test_the_doctor_asks_the_provider_and_says_which_redirect_address_to_register(
    provider: OpenIdProvider, browse: Opened
) -> None:
    browser = browse(**settings_of(provider))
    answer = browser.client.get("/v1/doctor", headers={"Authorization": f"Bearer {ADMIN}"})
    found = [one for one in answer.get_json()["findings"] if one["subject"] == "openid"]
    register = f"the redirect address to register at the provider is {provider.callback}"
    assert [(one["grade"], one["text"]) for one in found] == [
        ("ok", f"{provider.issuer} answers and has keys; {register}")
    ]
    assert provider.secret not in answer.get_data(as_text=True)


def test_the_doctor_says_what_to_change_of_the_settings(
    provider: OpenIdProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = ("note", f"the redirect address to register at the provider is {provider.callback}")
    differs = f"the provider calls itself {provider.issuer}, not {provider.issuer}/, which differs in the / at its end"
    mend = ": set BUCKETWIRE_OIDC_ISSUER to what it calls itself"
    assert checked(provider, oidc_issuer=f"{provider.issuer}/") == [("warning", differs + mend), register]
    wrong = f"{provider.issuer}/realms/ops"
    answers = "it answers 404; compare BUCKETWIRE_OIDC_ISSUER with what the provider shows"
    assert checked(provider, oidc_issuer=wrong)[0] == ("warning", f"the provider {wrong} cannot be reached: {answers}")
    other = provider.issuer.replace("localhost", "127.0.0.1")
    assert checked(provider, oidc_issuer=other)[0][1].startswith(f"the provider calls itself {provider.issuer}, not")
    nobody = f"http://localhost:{free_port()}"
    assert "cannot be reached: ConnectionError; look at" in checked(provider, oidc_issuer=nobody)[0][1]
    behind = SimpleNamespace(time=lambda: time.time() - 7200, monotonic=time.monotonic)
    monkeypatch.setattr("app.console.openid_provider.time", behind)
    [(grade, text), *_] = checked(provider)
    assert (grade, f"the clock of this host is 2.0 h behind that of the provider {provider.issuer}" in text) == (
        "warning", True,
    ), text  # fmt: skip


def test_keys_that_verify_no_token_are_called_so() -> None:
    signing = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"}).as_dict(private=False)
    secret = {"kty": "oct", "k": "c2VjcmV0LW9mLWEtdGVzdA"}
    for keys, said in (
        ([signing], ""), ([secret, signing], ""), ([secret], "has no key that verifies"),
        ([signing | {"use": "enc"}], "has no key that verifies"), ([{"kty": "new"}], "are not valid: MissingKeyError"),
        ([], "are not valid: MissingKeyError"), ([signing | {"n": ""}], "are not valid: "), ("x", "are not valid: "),
    ):  # fmt: skip
        text = "".join(key_problems("https://id.example", {"keys": keys}))
        assert (said in text, bool(text)) == (True, bool(said)), text
    assert "are not valid: KeyError" in "".join(key_problems("https://id.example", {}))


@pytest.mark.nightly("the other sign-ins, claims, keys and refusals")
def test_a_public_client_and_claims_at_the_userinfo_endpoint_behind_a_prefix(browse: Opened) -> None:
    url = "http://localhost/tools/bucketwire/console/"
    with openid_provider(f"{url}openid-callback", secret="", conform=True) as public:
        browser = browse(prefix="/tools/bucketwire", **settings_of(public, oidc_console_url=url.removesuffix("/")))
        assert sign_in(public, browser, "alice").status == 200
        assert "user alice" in browser.get("").text


def test_new_keys_of_the_provider_are_learned_and_without_it_tokens_still_work(browse: Opened) -> None:
    with openid_provider(f"{CONSOLE}openid-callback") as running:
        browser = browse(**settings_of(running))
        assert sign_in(running, browser, "alice").status == 200
        running.stop()
        assert browser.get("").status == 200  # a session does not need the provider
        running.start()
        assert sign_in(running, browser, "bob").status == 200
        fresh = browse(**settings_of(running))
        query = at_provider(running, fresh, "alice")
        running.stop()
        page = back(fresh, query)
        assert (page.status, "does not answer: ConnectionError" in page.text) == (502, True)
    fresh = browse(**settings_of(running))
    page = fresh.get("openid")
    assert page.status == 503
    assert "cannot be reached: ConnectionError. Signing in with a token works" in page.text
    assert fresh.sign_in(ADMIN).status == 303
    assert "token ops" in fresh.get("").text


def test_without_the_settings_there_is_no_such_sign_in(browse: Opened) -> None:
    browser = browse(api_tokens=TOKENS)
    assert "Sign in with" not in browser.get("sign-in").text
    for path in ("openid", "openid-callback?code=x&state=y"):
        assert browser.get(path).status == 404


class Answering(Provider):
    """A provider whose answers are given."""

    def __init__(self, settings: Settings, keys: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.keys = keys

    def _keys(self, *, again: bool = False) -> Any:
        return self.keys


def test_a_token_counts_only_if_a_key_of_the_provider_has_signed_it() -> None:
    ours, theirs = (RSAKey.generate_key(2048, {"kid": "one", "use": "sig"}) for _ in range(2))
    public = {"keys": [ours.as_dict(private=False)]}
    found = Answering(Settings(), public)
    claims = {"sub": "alice"}
    assert found._verified(jwt.encode({"alg": "RS256", "kid": "one"}, claims, ours)).claims == claims
    forged = [
        jwt.encode({"alg": "RS256", "kid": "one"}, claims, theirs),
        jwt.encode({"alg": "RS256", "kid": "two"}, claims, theirs),
        signed_with_the_public_key(ours.as_pem(private=False), {"alg": "HS256", "kid": "one"}, claims),
        "eyJhbGciOiJub25lIiwia2lkIjoib25lIn0.eyJzdWIiOiJhbGljZSJ9.",
    ]
    for token in forged:
        with pytest.raises(JoseError):
            found._verified(token)


def signed_with_the_public_key(key: bytes, *parts: Mapping[str, str]) -> str:
    """What a library accepts that takes the algorithm from the token and any key for a secret."""
    content = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    digest = base64.urlsafe_b64encode(hmac.new(key, content, "sha256").digest()).rstrip(b"=")
    return f"{content.decode()}.{digest.decode()}"


def test_what_the_table_of_the_documentation_says_that_people_see_is_what_is_said() -> None:
    page = (ROOT / "docs/how-to/console.md").read_text()
    table = page.partition("| what you see | what to change |\n")[2].partition("\n\n")[0]
    shown = [found for row in table.splitlines()[1:] for found in re.findall("`([^`]+)`", row.split(" | ")[0])]
    assert len(shown) >= 15
    sources = "".join(path.read_text() for path in (ROOT / "app/console").rglob("*openid*.py"))
    others = "".join((ROOT / "app/console" / name).read_text() for name in ("session.py", "views/sign_in.py"))
    sources += others + " ".join(OF_OTHERS)
    kinds = re.compile(": [A-Z][A-Za-z]+Error$|: [a-z]+_[a-z]+$")  # of a library or the provider
    pieces = [piece.strip() for text in shown for piece in kinds.sub("", text).split("…") if piece.strip(" ,")]
    assert [piece for piece in pieces if piece.lstrip(", ") not in sources] == []


def test_values_of_the_claim_give_scopes() -> None:
    settings = Settings.from_environ(
        {
            "BUCKETWIRE_OIDC_ISSUER": "https://id.example", "BUCKETWIRE_OIDC_CLIENT_ID": "x",
            "BUCKETWIRE_OIDC_CONSOLE_URL": "https://ops.example/console", "BUCKETWIRE_OIDC_ADMIN": "a, b",
            "BUCKETWIRE_OIDC_READ": "c", "BUCKETWIRE_OIDC_CLAIM": "roles",
        }
    )  # fmt: skip
    assert settings.oidc_console_url == "https://ops.example/console/"
    for value, scope in (
        (["a"], {"admin"}), (["c", "b"], {"admin"}), ("c", {"read"}), (["c", 1, None, {}], {"read"}), ("a b", None),
        (["A"], None), ([], None), (None, None), ({"a": 1}, None), (True, None), (["*"], None),
    ):  # fmt: skip
        values = granted(settings, {"roles": value})
        assert scopes(settings, values) == (scope or set()), value
        person = identity(settings, Person("https://id.example", "1", "alice", values))
        assert (person is None) == (scope is None)
    assert identity(settings, Person("https://other.example", "1", "alice", ("a",))) is None


def test_an_address_that_nobody_has_verified_gives_nothing() -> None:
    settings = Settings.from_environ(
        {
            "BUCKETWIRE_OIDC_ISSUER": "https://id.example", "BUCKETWIRE_OIDC_CLIENT_ID": "x",
            "BUCKETWIRE_OIDC_CONSOLE_URL": "https://ops.example/console/", "BUCKETWIRE_OIDC_CLAIM": "email",
            "BUCKETWIRE_OIDC_ADMIN": "alice@ops.example",
        }
    )  # fmt: skip
    for verified, values in ((True, ("alice@ops.example",)), (False, ()), ("true", ()), (None, ())):
        assert granted(settings, {"email": "alice@ops.example", "email_verified": verified}) == values


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"ISSUER": "http://id.example"}, "OIDC_ISSUER.*is not an https URL"),
        ({"ISSUER": "id.example"}, "OIDC_ISSUER"),
        ({"ISSUER": "https://id.example/?a=b"}, "OIDC_ISSUER.*is not an issuer"),
        ({"CLIENT_ID": ""}, "OIDC_CLIENT_ID.*is missing"),
        ({"CONSOLE_URL": ""}, "OIDC_CONSOLE_URL.*is missing"),
        ({"CONSOLE_URL": "https://ops.example/"}, "OIDC_CONSOLE_URL.*is not the console's address"),
        ({"ADMIN": ""}, "OIDC_READ.*is missing"),
        ({"SCOPE": "profile"}, "OIDC_SCOPE.*lacks openid"),
        ({}, ""),
    ],
)
def test_settings_that_cannot_work_are_refused(variables: dict[str, str], problem: str) -> None:
    given = {"ISSUER": "https://id.example", "CLIENT_ID": "x", "CONSOLE_URL": CONSOLE, "ADMIN": "a"} | variables
    environ = {f"BUCKETWIRE_OIDC_{name}": value for name, value in given.items()}
    if not problem:
        assert Settings.from_environ(environ).oidc_scope == "openid profile email"
        return
    with pytest.raises(BadSettings) as refused:
        Settings.from_environ(environ)
    assert re.search(problem, str(refused.value)), refused.value
