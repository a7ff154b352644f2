"""Who gets in, what a session may do, when it ends, and which forms are refused."""

from __future__ import annotations

import json
import time
from urllib.parse import urljoin, urlsplit

import pytest
from cryptography.fernet import Fernet

from app.api.listen.broadcaster import SocketHandedOver, Streams
from app.api.listen.stream import StreamQuery
from app.config.settings import hash_token
from app.outbox.audit import AuditFilter, actions_of, entries
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.tokens import Tokens
from tests.integration.console.conftest import ADMIN, INGEST, READ, TOKENS, Browser, Opened
from tests.services import until
from tests.support.builders import add_target, event, registry
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected

PAGES = (
    "", "events", "dead-letters", "retries", "rules", "replays", "reconciliations", "processes", "targets/new",
    "targets/webhook/audit",
)  # fmt: skip
FOR_ADMINS = ("tokens", "audit")


def test_without_tokens_this_machine_needs_no_sign_in(local: Browser, database: Database) -> None:
    add_target(database, "audit")
    for path in (*PAGES, *FOR_ADMINS):
        assert local.get(path).status == 200, path
    assert local.post("targets/webhook/audit/pause", "targets/webhook/audit").status == 303
    assert registry(database).targets()[0].state == "paused"


def test_without_tokens_no_other_name_and_no_proxy_leads_here(local: Browser, database: Database) -> None:
    """A page of another site may have its own name resolve to 127.0.0.1: DNS rebinding."""
    add_target(database, "audit")
    form = local.get("targets/webhook/audit").form
    for headers in ({"Host": "evil.example"}, {"X-Forwarded-For": "192.0.2.1"}, {"Origin": "http://evil.example"}):
        page = local.get("", **headers)
        assert page.status == 403, headers
        assert "audit" not in page.text
        assert local.post("targets/webhook/audit/pause", _headers=headers, form=form).status == 403
    assert registry(database).targets()[0].state == "running"


def test_sign_ins_and_refusals_are_in_the_log_and_the_audit_log_with_their_reason(
    browse: Opened, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bucketwire.api")
    revoked = Tokens(database).create("former", ["admin"])
    Tokens(database).revoke("former")
    browser = browse(api_tokens=TOKENS)
    for token, status in ((revoked, 401), ("0a-guess-of-somebody", 401), (INGEST, 401), ("", 401), (ADMIN, 303)):
        assert browser.sign_in(token).status == status
    assert browser.post("sign-in", token=ADMIN, form="forged").status == 403
    assert "was revoked" in browser.sign_in(revoked).text
    assert browser.post("sign-out", "").status == 303

    def audited() -> list[tuple[str, str, str | None]]:
        found = entries(database, AuditFilter(actions=actions_of("session")), limit=20)
        assert {one.resource for one in found} <= {"session:console"}
        return sorted((one.action, one.actor.name, one.details.get("reason")) for one in found)

    expected = [
        ("session.begin", "token:ops", None), ("session.end", "token:ops", None),
        ("session.refuse", "token:former", "token-revoked"), ("session.refuse", "token:minio", "scope"),
        ("session.refuse", "unknown", "bad-form"), ("session.refuse", "unknown", "token-missing"),
        ("session.refuse", "unknown", "token-unknown"),
    ]  # fmt: skip
    until(lambda: audited() == expected, 30)
    text = "\n".join(caplog.messages)
    for said in (
        "token:ops has signed in to the console from ",
        "1 sign-in was refused (401, token-revoked): token former was revoked at 20",
        "1 sign-in was refused (401, token-unknown): the token is unknown",
        "1 sign-in was refused (401, scope): token minio lacks the scope read",
    ):
        assert said in text, text
    assert not {token for token in (revoked, "0a-guess-of-somebody", INGEST, ADMIN) if token in text}


def test_the_sign_in_page_may_be_probed(browse: Opened) -> None:
    assert browse(api_tokens=TOKENS).client.head("/console/sign-in").status_code == 200


def test_everything_leads_to_the_sign_in_and_back(browse: Opened, database: Database) -> None:
    add_target(database, "audit")
    browser = browse(api_tokens=TOKENS)
    for path in (*PAGES, *FOR_ADMINS):
        page = browser.get(path)
        assert page.status == 303, path
        assert "sign-in" in page.location
        assert "audit" not in page.text
    page = browser.get("events?bucket=images&prefix=a%2Fb")
    assert page.location == "./sign-in?next=events%3Fbucket%3Dimages%26prefix%3Da%252Fb"
    asked = browser.get("sign-in?next=events%3Fbucket%3Dimages%26prefix%3Da%252Fb")
    [following] = asked.values("next")
    assert browser.sign_in(ADMIN, next=following).location == "./events?bucket=images&prefix=a%2Fb"
    assert browser.get("events?bucket=images").status == 200


@pytest.mark.parametrize(
    "hostile",
    ["//evil.example", "https://evil.example", "javascript:alert(1)", "\\\\evil.example", "/\t/evil", "%0d%0aX:1"],
)
def test_after_the_sign_in_nothing_leads_out_of_the_console(browse: Opened, hostile: str) -> None:
    page = browse(api_tokens=TOKENS).sign_in(ADMIN, next=hostile)
    assert page.status == 303
    assert page.location.startswith("./")
    assert not page.location.startswith(("./\\", ".//"))


def test_the_cookie_is_for_the_console_alone(browse: Opened) -> None:
    browser = browse(api_tokens=TOKENS)
    page = browser.sign_in(ADMIN)
    [cookie] = page.response.headers.getlist("Set-Cookie")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Max-Age=43200" in cookie
    assert "Path" not in cookie  # the folder of the page that sets it, which is /console
    assert "Secure" not in cookie
    assert ADMIN not in cookie
    assert browser.client.get("/v1/targets").status_code == 401  # outside of its path
    client, held = browser.presenting(browser.cookie).client, {"Cookie": browser.cookie}
    assert client.get("/console/audit", headers=held).status_code == 200
    assert client.get("/v1/targets", headers=held).status_code == 401
    assert client.post("/v1/targets/webhook/a/pause", headers=held, json={}).status_code == 401
    over_tls = browse(api_tokens=TOKENS)
    over_tls.headers = {"X-Forwarded-Proto": "https"}
    assert "Secure" in over_tls.sign_in(ADMIN).response.headers["Set-Cookie"]


def test_a_token_that_is_wrong_or_may_only_post_does_not_get_in(browse: Opened) -> None:
    browser = browse(api_tokens=TOKENS)
    for token, problem in (("nonsense", "not valid"), ("", "paste a token"), (INGEST, "needs read or admin")):
        page = browser.sign_in(token)
        assert (page.status, problem in page.text) == (401, True), token
        assert browser.get("").status == 303


def test_the_header_that_a_proxy_adds_is_no_session(browse: Opened) -> None:
    browser = browse(api_tokens=TOKENS)
    browser.headers = {"Authorization": f"Bearer {ADMIN}"}
    assert browser.get("").status == 303
    assert browser.sign_in(READ).status == 303
    browser.headers = {"Authorization": "Basic b3BzOnByb3h5LXBhc3N3b3Jk"}
    assert browser.get("").status == 200
    assert "viewer" in browser.get("").text


def test_signing_out_ends_the_session_for_every_copy_of_its_cookie(browse: Opened) -> None:
    browser, other = browse(api_tokens=TOKENS), browse(api_tokens=TOKENS)
    for each in (browser, other):
        assert each.sign_in(ADMIN).status == 303
    thief = browse(api_tokens=TOKENS).presenting(browser.cookie)  # at another API process
    form = thief.get("").form
    assert browser.post("sign-out", "").status == 303
    assert browser.get("").status == 303
    page = thief.get("")
    assert (page.status, "ended=1" in page.location) == (303, True)
    assert thief.post("sign-out", form=form).status == 303
    assert thief.post("tokens", form=form, name="mine", scopes="admin").status == 303
    assert "mine" not in other.get("tokens").text
    assert other.get("").status == 200  # another session of the same token
    assert browser.sign_in(ADMIN).status == 303
    assert thief.get("").status == 303


def test_a_new_sign_in_ends_the_session_before_in_this_browser(browse: Opened) -> None:
    browser = browse(api_tokens=TOKENS)
    browser.sign_in(ADMIN)
    thief = browser.presenting(browser.cookie)
    assert thief.get("audit").status == 200
    browser.sign_in(READ)
    assert thief.get("").status == 303
    assert browser.get("").status == 200


def test_signing_out_ends_what_the_session_streams(browse: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The live tail of the events page, also where somebody has copied the cookie."""
    queries: list[StreamQuery] = []

    def begin(_streams: Streams, query: StreamQuery, **_options: object) -> SocketHandedOver:
        queries.append(query)
        return SocketHandedOver(lambda _socket: None)

    monkeypatch.setattr(Streams, "begin", begin)
    browser, other = browse(api_tokens=TOKENS), browse(api_tokens=TOKENS)
    for each in (browser, other):
        each.sign_in(READ)
        with pytest.raises(SocketHandedOver):
            each.get("events/stream")
    assert [query.is_allowed and query.is_allowed() for query in queries] == [True, True]
    browser.post("sign-out", "")
    assert [query.is_allowed and query.is_allowed() for query in queries] == [False, True]


def test_a_session_that_may_only_read_is_offered_and_granted_no_change(browse: Opened, database: Database) -> None:
    add_target(database, "audit")
    registry(database).pause(add_target(database, "other"), "for a test")
    browser = browse(api_tokens=TOKENS)
    browser.sign_in(READ)
    for path in PAGES:
        page = browser.get(path)
        assert page.status == 200, path
        assert {action.rpartition("/")[2] for action in page.actions} <= {"sign-out", "new"}, path
        links = {a["href"].rpartition("../")[2].removeprefix("./") for a in page.all("a")}
        assert not links & {"tokens", "audit"}, path
    form = browser.get("").form
    for path in FOR_ADMINS:
        assert browser.get(path).status == 403, path
    for path, data in (
        ("targets/webhook/audit/pause", {}),
        ("targets/webhook/other/resume", {}),
        ("targets/webhook/audit/remove", {"typed": "webhook:audit"}),
        ("targets/webhook/audit/edit", {"s.endpoint": "http://evil.example/"}),
        ("targets/new", {"type": "webhook", "target_name": "mine", "s.endpoint": "http://evil.example/"}),
        ("rules/new", {"bucket": "a", "events": "*", "target": "webhook:audit"}),
        ("rules/1/remove", {}),
        ("dead-letters/replay", {"scope": "matching"}),
        ("dead-letters/purge", {"scope": "matching", "typed": "purge", "confirmed": "1"}),
        ("retries/now", {"scope": "matching"}),
        ("retries/give-up", {"scope": "matching"}),
        ("replays", {"target": "webhook:audit", "all": "1"}),
        ("tokens", {"name": "mine", "scopes": "admin"}),
        ("tokens/ops/revoke", {"typed": "ops"}),
    ):
        page = browser.post(path, form=form, **data)
        assert page.status in (303, 403, 400), path
        assert page.status == 403 or "notice=" in page.location or "scope admin" in page.text, (path, page.status)
    targets = {str(stored.target): stored.state for stored in registry(database).targets()}
    assert targets == {"webhook:audit": "running", "webhook:other": "paused"}
    assert len(registry(database).rules()) == 2
    assert [token.name for token in Tokens(database).list()] == []


def test_a_limited_session_sees_its_buckets_and_targets_and_nothing_else(browse: Opened, database: Database) -> None:
    target, other = add_target(database, "audit", bucket="images"), add_target(database, "payroll", bucket="salaries")
    log = Log(database)
    log.append([[event("mine"), event("dead"), event("slow"), event("payslip", bucket="salaries")]])
    outcomes: dict[str, Outcome] = {"dead": Rejected("no such column"), "slow": Failed("500 broken", retry_after=600)}
    for each in (target, other):
        Courier(database, each, ScriptedTarget(lambda given: outcomes.get(given.key, DELIVERED))).run()
    admin = browse(api_tokens=TOKENS)
    admin.sign_in(ADMIN)
    replay = admin.post("replays", "", target="webhook:payroll", all="1")
    assert "has+begun" in replay.location or "notice" in replay.location
    token = Tokens(database).create("team", ["admin"], buckets=["images"], targets=[target])
    browser = browse(api_tokens=TOKENS)
    until(lambda: browser.sign_in(token).status == 303)
    leads_to: dict[str, str] = {}
    for path in (
        "", "events", "events?follow=1", "events?state=dead", "dead-letters", "retries", "replays",
        "replays?step=preview&target=webhook:audit&bucket=images", "targets/webhook/audit", "doctor",
        "targets/webhook/audit/edit", "targets/webhook/audit/remove",
    ):  # fmt: skip
        page = browser.get(path)
        assert page.status == 200, (path, page.text)
        assert "limited to the bucket images and the target webhook:audit" in page.text, path
        assert "payroll" not in page.text, path
        assert "payslip" not in page.text, path
        links = {given["href"].rpartition("../")[2].removeprefix("./").partition("?")[0] for given in page.all("a")}
        assert not links & {"rules", "processes", "tokens", "audit", "doctor", "reconciliations", "targets/new"}, path
        for given in page.all("a"):
            if "/static/" not in given["href"] and not given["href"].startswith("#"):
                link = urlsplit(urljoin(f"http://localhost/console/{path}", given["href"]))
                leads_to[f"{link.path.removeprefix('/console/')}?{link.query}"] = path
    for link_of, path in leads_to.items():
        assert browser.get(link_of).status == 200, (link_of, path)
    assert "no such column" in browser.get("dead-letters").text
    assert "500 broken" in browser.get("retries").text
    for path in (
        "events?bucket=salaries", "dead-letters?target=webhook:payroll", "retries?target=webhook:payroll",
        "targets/webhook/payroll", "rules", "processes", "tokens", "audit", "reconciliations",
    ):  # fmt: skip
        page = browser.get(path)
        assert page.status == 403, path
        assert "payslip" not in page.text
    [letter] = browser.get("dead-letters").values("ids")
    page = browser.post("dead-letters/replay", "dead-letters", ids=letter, scope="selected", target="webhook:audit")
    assert "notice=" in page.location
    assert browser.get("dead-letters").values("ids") == []
    assert browser.post("dead-letters/replay", "", scope="matching", target="webhook:payroll").status == 303
    with pytest.raises(SocketHandedOver):
        browser.get("events/stream?bucket=images")
    assert browser.get("events/stream").status == 403


def test_a_session_that_is_limited_to_targets_has_no_events_and_the_other_way_round(
    browse: Opened, database: Database
) -> None:
    target = add_target(database, "audit")
    tokens = Tokens(database)
    for name, limits, shown, hidden in (
        ("of-targets", {"targets": [target]}, "dead-letters", "events"),
        ("of-buckets", {"buckets": ["images"]}, "events", "dead-letters"),
    ):
        token = tokens.create(name, ["read"], **limits)  # type: ignore[arg-type]
        browser = browse(api_tokens=TOKENS)
        until(lambda browser=browser, token=token: browser.sign_in(token).status == 303)  # type: ignore[misc]
        page = browser.get("")
        links = {given["href"] for given in page.all("a")}
        assert (f"./{shown}" in links, f"./{hidden}" in links) == (True, False)
        assert (browser.get(shown).status, browser.get(hidden).status) == (200, 403)


def test_a_revoked_token_ends_its_sessions(browse: Opened, database: Database) -> None:
    token = Tokens(database).create("lent", ["admin"])
    browser = browse()
    until(lambda: browser.get("").status == 303)
    browser.sign_in(token)
    page = browser.get("tokens")
    assert page.status == 200
    Tokens(database).revoke("lent")
    Tokens(database).create("lent", ["admin"])  # another token of the same name is another token
    until(lambda: browser.get("").status == 303)
    assert "ended=1" in browser.get("").location
    assert browser.post("tokens", form=page.form, name="mine", scopes="admin").status == 303
    assert [each.name for each in Tokens(database).list()] == ["lent"]
    live = browser.get("", HX_Request="true")  # a live part does not become the sign-in
    assert (live.response.headers["HX-Refresh"], live.response.get_data()) == ("true", b"")


def test_a_token_that_expires_ends_its_sessions(
    browse: Opened, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = now_ms() + 900_000
    token = Tokens(database).create("lent", ["admin"], expires_at=ends)
    browser = browse()
    until(lambda: browser.get("").status == 303)
    browser.sign_in(token)
    assert browser.get("tokens").status == 200
    monkeypatch.setattr("app.outbox.tokens.now_ms", lambda: ends)
    assert "ended=1" in browser.get("").location
    refused = browser.sign_in(token)
    assert (refused.status, "this token has expired; create another one" in refused.text) == (401, True)
    assert "this token is not valid" in browser.sign_in("bw_other").text


def test_a_session_survives_a_restart_and_has_the_scopes_that_its_token_has_now(
    browse: Opened, database: Database
) -> None:
    first = browse(api_tokens=f"ops:admin:{ADMIN}")
    first.sign_in(ADMIN)
    assert first.get("audit").status == 200
    second = browse(api_tokens=f"ops:read:{ADMIN}")  # another process, or the same after a change
    second.client = first.client
    second.client.application = second.app
    assert second.get("").status == 200
    assert second.get("audit").status == 403
    third = browse(api_tokens=f"ops:ingest:{ADMIN}")
    third.client = first.client
    third.client.application = third.app
    page = third.get("")
    assert page.status == 403
    assert "lacks the scope read" in page.text
    other_key = browse(api_tokens=f"ops:admin:{ADMIN}", secret_keys=Fernet.generate_key().decode())
    other_key.client = first.client
    other_key.client.application = other_key.app
    assert other_key.get("").status == 303


def test_a_session_ends_after_twelve_hours(admin: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    form, now = admin.get("").form, time.time()
    monkeypatch.setattr("app.console.session.time.time", lambda: now + 12 * 3600 - 60)
    assert admin.get("").status == 200
    monkeypatch.setattr("app.console.session.time.time", lambda: now + 12 * 3600 + 60)
    assert admin.get("").status == 303
    assert admin.post("sign-out", form=form).status == 303


@pytest.mark.nightly(
    "one that is short, long, quoted and not ASCII", when=lambda cookie: cookie in {"gAAAAA", "a.b.c", "null"}
)
@pytest.mark.parametrize("cookie", ["x", "gAAAAA", "gAAAAA" * 2000, "ü", '"', "a.b.c", "null"])
def test_a_cookie_that_is_not_ours_is_no_session(browse: Opened, cookie: str) -> None:
    browser = browse(api_tokens=TOKENS)
    browser.sign_in(ADMIN)
    assert browser.get("").status == 200
    kept = browser.cookie
    assert browser.presenting(f"bucketwire_console={cookie}").get("").status == 303
    assert browser.presenting(kept).get("").status == 200  # so a cookie that is presented counts


def test_a_stored_secret_is_no_session(browse: Opened, database: Database) -> None:
    """Secrets of targets are sealed with the same key, and an administrator may choose their text."""
    browser = browse(api_tokens=TOKENS)
    sealer = browser.app.extensions["bucketwire"].sealer
    browser.app.extensions["bucketwire"].sessions.begin("1", hash_token(ADMIN), 3600)

    def status(text: str) -> int:
        return browser.presenting(f"bucketwire_console={sealer.seal(text).partition(':')[2]}").get("").status

    held = {"for": "console session", "until": 9999999999, "number": "1", "digest": hash_token(ADMIN)}
    kept = [{name: value for name, value in held.items() if name != missing} for missing in ("for", "until")]
    kept += [held | {"for": "console form"}, held | {"until": 1}]
    for text in (*(json.dumps(each) for each in kept), "[]", "1", "hunter2"):
        assert status(text) == 303, text
    assert status(json.dumps(held)) == 200  # so the cookies above were presented


def test_a_form_of_another_session_or_of_no_session_changes_nothing(browse: Opened, database: Database) -> None:
    add_target(database, "audit")
    admin, other = browse(api_tokens=TOKENS), browse(api_tokens=TOKENS)
    admin.sign_in(ADMIN)
    other.sign_in(ADMIN)
    path = "targets/webhook/audit/pause"
    cookie = next(iter(admin.client._cookies.values())).value
    notice = admin.post("replays", "", target="webhook:audit", all="1").location.partition("notice=")[2]
    for form in ("", "x", other.get("").form, browse(api_tokens=TOKENS).get("sign-in").form, cookie, notice):
        page = admin.post(path, form=form)
        assert page.status == 403, form
        assert "nothing was changed" in page.text
    assert registry(database).targets()[0].state == "running"
    assert admin.post(path, form=admin.get("").form).status == 303


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://ops.example"}, 303),  # a proxy has replaced Host
        ({"Origin": "https://ops.example", "X-Forwarded-Host": "ops.example"}, 303),
        ({"Origin": "http://localhost"}, 303),
        ({}, 303),
    ],
)
def test_a_form_from_another_site_changes_nothing(
    admin: Browser, database: Database, headers: dict[str, str], status: int
) -> None:
    add_target(database, "audit")
    page = admin.post("targets/webhook/audit/pause", "targets/webhook/audit", _headers=headers)
    assert page.status == status
    assert registry(database).targets()[0].state == ("paused" if status == 303 else "running")


def test_nobody_is_signed_in_by_another_sites_form(browse: Opened) -> None:
    attacker, victim = browse(api_tokens=TOKENS), browse(api_tokens=TOKENS)
    form = attacker.get("sign-in").form
    victim.get("sign-in")
    assert victim.post("sign-in", form=form, token=READ).status == 403
    assert victim.post("sign-in", _headers={"Origin": "http://evil.example"}, token=READ).status == 403
    assert victim.get("").status == 303


def test_what_the_console_changes_is_in_the_audit_log_as_the_tokens(admin: Browser, database: Database) -> None:
    add_target(database, "audit")
    admin.post("targets/webhook/audit/pause", "targets/webhook/audit", reason="for lunch")
    page = admin.get("audit")
    assert "token:ops" in page.text
    assert "console POST /v1/targets/<type_name>/<name>/pause" in page.text
    assert "for lunch" in page.text


def test_a_form_without_end_is_refused(browse: Opened) -> None:
    browser = browse(api_tokens=TOKENS)
    assert browser.post("sign-in", token="x" * (2 << 20)).status == 413
