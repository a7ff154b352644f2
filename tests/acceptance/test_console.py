"""The console in a real browser, over a real service: an outage from beginning to end, and every page's looks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, expect

from app.config.arn import TargetId
from app.events.model import Event
from app.outbox.reconcile.runs import Reconciliations, store_findings
from tests import services
from tests.services import Answer, until
from tests.services.openid import openid_provider
from tests.support.builders import event
from tests.support.console_browser import PATIENCE, Visit, chromium
from tests.support.properties import times
from tests.support.pulled_events import reject
from tests.support.service_processes import System, system

NIGHTLY = pytest.mark.nightly(
    "events that are followed in a browser; pages, forms and sign-ins without one in integration/console"
)

ADMIN, READ, INGEST = (f"{scope}-{uuid4().hex}" for scope in ("admin", "read", "ingest"))
TOKENS: Any = f"ops:admin:{ADMIN},viewer:read:{READ},minio:ingest:{INGEST}"
LONG_REASON = "MinIO at http://minio.example.com:9000 answered with 403 AccessDenied: no permission s3:ListBucket. " * 3
HOSTILE = "<script>document.title='pwned'</script>\"'\u202egpj\n" + "W" * 700 + "🎉é" * 30

WIDTHS = (360, 400, 480, 600, 768, 1024, 1280, 1920)

# What is written on each canvas since it was cleared, and how many points are drawn.
RECORD_TEXTS = """
window.drawn = [];
const plain = CanvasRenderingContext2D.prototype;
const {clearRect, fillText} = plain;
plain.clearRect = function (...place) {
  this.record ??= (window.drawn.push({}), window.drawn.at(-1));
  this.record.texts = [];
  clearRect.apply(this, place);
};
plain.fillText = function (text, ...place) {
  this.record?.texts.push(String(text));
  fillText.call(this, text, ...place);
};
window.points = 0;
const {arc} = Path2D.prototype;
Path2D.prototype.arc = function (...place) { window.points += 1; arc.apply(this, place); };
"""

expect.set_options(timeout=PATIENCE)
pytestmark = pytest.mark.timeout(900)  # a browser on a busy machine looks at forty pages, each three times


@pytest.fixture(scope="module")
def whole() -> Iterator[System]:
    with services.redis() as broker:
        url = f"sqlite:///{services.new_folder('console')}/outbox.db"
        with system(url, broker.url, concurrency=1, token=ADMIN, api_tokens=TOKENS) as running:
            yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@contextmanager
def visit(browser: Browser, whole: System, token: str = ADMIN, **options: Any) -> Iterator[Visit]:
    """A signed-in look at the console, which has to be without any error in the end."""
    visitor = Visit(browser, whole.api.url, options)
    try:
        if token:
            visitor.sign_in(token)
        yield visitor
        visitor.check()
    finally:
        visitor.close()


def body(*events: Event) -> bytes:
    return f'{{"Records":[{",".join(one.record for one in events)}]}}'.encode()


def name() -> str:
    """A name of the test's own, for a target and its bucket."""
    return f"t-{uuid4().hex[:8]}"


@NIGHTLY
def test_an_outage_is_seen_mended_and_repaired(browser: Browser, whole: System, receiver: services.Receiver) -> None:
    target = name()
    with visit(browser, whole) as look:
        page = look.page
        # A target and a rule by their forms.
        page.get_by_role("link", name="Add a target").first.click()
        page.get_by_role("link", name=re.compile("^Webhook")).click()
        page.get_by_label("Name", exact=False).first.fill(target)
        page.get_by_label("endpoint").fill(receiver.url)
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("status").first).to_contain_text("is created")
        page.get_by_role("link", name="Add a rule").click()
        page.get_by_label("Bucket").fill(target)
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("status").first).to_contain_text(f"go to webhook:{target}")
        # An event arrives; the page of the target shows it without being loaded again.
        page.goto(f"targets/webhook/{target}")
        delivered = page.locator(".equation .delivered dd")
        expect(delivered).to_have_text("0")
        whole.post(body(event("first", bucket=target)))
        expect(delivered).to_have_text("1")
        # The target breaks: its events wait, and it says why.
        receiver.set(status=503)
        whole.post(body(event("second", bucket=target)))
        verdict = page.locator(".verdict")
        expect(verdict).to_contain_text("unavailable")
        expect(verdict).to_contain_text("answered 503")
        page.goto("")
        expect(page.locator(".findings li").filter(has_text=f"webhook:{target}")).to_contain_text("unavailable: ")
        # It answers again, but refuses: the events die.
        receiver.set(status=422, body="no such column")
        page.goto(f"targets/webhook/{target}")
        expect(page.locator(".equation .dead dd")).to_have_text("1")
        whole.post(body(event("third", bucket=target)))
        expect(page.locator(".equation .dead dd")).to_have_text("2")
        expect(page.locator("#count-dead-letters")).to_have_text(re.compile("[1-9]"))  # also in the navigation
        expect(page.locator("#errors")).to_be_visible()
        page.locator("#c-dead").click()
        expect(page.locator("tbody .reason").first).to_contain_text("no such column")
        # It is mended; the dead letters are replayed and arrive.
        receiver.set()
        receiver.forget()
        page.get_by_role("link", name=re.compile("no such column")).click()
        expect(page.get_by_label("all that match")).to_be_checked()
        page.set_viewport_size({"width": 1280, "height": 300})
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        expect(page.get_by_role("button", name="Replay", exact=True)).to_be_in_viewport()
        page.get_by_label("Select all on this page").check()
        expect(page.get_by_label("the selected")).to_be_checked()
        expect(page.locator(".selected-count")).to_have_text("(2)")
        page.get_by_role("button", name="Replay", exact=True).click()
        expect(page.get_by_role("status").first).to_contain_text("2 dead letters are delivered again")
        page.goto(f"targets/webhook/{target}")
        expect(delivered).to_have_text("3")
        expect(page.locator(".verdict .state.good").first).to_be_visible()
    assert sorted(request.json()["Key"] for request in receiver.requests()) == [f"{target}/second", f"{target}/third"]


@NIGHTLY
def test_an_open_page_says_that_nothing_answers_and_goes_on_when_something_does(
    browser: Browser, whole: System, receiver: services.Receiver
) -> None:
    target = name()
    whole.add_target(f"webhook:{target}", target, endpoint=receiver.url)
    with visit(browser, whole) as looking, visit(browser, whole) as following:
        page, tail = looking.page, following.page
        page.goto(f"targets/webhook/{target}")
        expect(page.locator(".verdict")).to_contain_text("running")
        tail.goto("events?follow=1")
        expect(tail.locator("#tail-status")).to_contain_text("Following.")
        whole.api.kill()
        try:
            for each in (page, tail):
                expect(each.get_by_role("alert")).to_contain_text(re.compile(r"No answer since \d\d:\d\d:\d\d UTC"))
                expect(each.locator("body")).to_have_class(re.compile("stale"))
            expect(tail.locator("#tail-status")).to_contain_text("The connection is lost; trying again.")
            assert looking.problems() == []
            for look, width in ((looking, 1280), (looking, 360), (following, 1280), (following, 360)):
                look.page.set_viewport_size({"width": width, "height": 800})
                for theme in ("light", "dark"):
                    look.page.emulate_media(color_scheme=theme)
                    look.shoot(f"no-answer-{'target' if look is looking else 'tail'}-{theme}-{width}", whole=False)
        finally:
            whole.api.start()
        for each in (page, tail):
            expect(each.get_by_role("alert")).to_have_count(0)
        expect(tail.locator("#tail-status")).to_contain_text("Following.")
        whole.post(body(event("after", bucket=target)))
        expect(page.locator(".equation .delivered dd")).to_have_text("1")
        expect(tail.locator("#events-found")).to_contain_text("after")
        for look in (looking, following):  # htmx reports each request that was not answered
            look.reported = [text for text in look.reported if "htmx:" not in text]


@NIGHTLY
def test_a_paused_target_gets_its_events_when_it_is_resumed(
    browser: Browser, whole: System, receiver: services.Receiver
) -> None:
    target = name()
    whole.add_target(f"webhook:{target}", target, endpoint=receiver.url)
    with visit(browser, whole) as look:
        page = look.page
        page.goto(f"targets/webhook/{target}")
        page.get_by_role("button", name="Pause").click()
        expect(page.locator(".verdict")).to_contain_text("paused in the console")
        whole.post(body(event("a", bucket=target)))
        expect(page.locator(".equation .pending dd")).to_have_text("1")
        page.locator("#c-pending").click()
        page.locator("table a").first.click()
        expect(page.get_by_text("It waits: the target is paused.")).to_be_visible()
        page.goto(f"targets/webhook/{target}")
        page.get_by_role("button", name="Resume").click()
        expect(page.locator(".equation .delivered dd")).to_have_text("1")
    assert len(receiver.requests()) == 1


def test_new_events_are_followed(browser: Browser, whole: System) -> None:
    bucket = name()
    whole.post(body(event("old", bucket=bucket)))
    with visit(browser, whole, READ) as look:
        page = look.page
        page.goto("events")
        page.get_by_label("Bucket").fill(bucket)
        page.get_by_role("button", name="Search").click()
        page.get_by_role("link", name="Follow live").click()
        rows, status = page.locator("#events-found tr"), page.locator("#tail-status")
        expect(rows).to_have_count(1)
        expect(status).to_contain_text("Following.")
        whole.post(body(event("elsewhere", bucket=name()), event(HOSTILE, bucket=bucket)))
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("<script>")
        expect(rows.first).to_contain_text("\\u202e")
        expect(status).to_contain_text("1 new event.")
        expect(rows.first).to_contain_text("no target")  # what became of it, without loading the page again
        assert page.locator("#events-found script").count() == 0
        assert page.title() != "pwned"


@NIGHTLY
def test_events_that_are_followed_are_frozen(browser: Browser, whole: System) -> None:
    bucket = name()
    whole.post(body(event("old", bucket=bucket), event("older", bucket=bucket)))
    with visit(browser, whole, READ) as look:
        page = look.page
        page.goto(f"events?follow=1&bucket={bucket}")
        rows, status = page.locator("#events-found tr"), page.locator("#tail-status")
        expect(rows).to_have_count(2)
        expect(status).to_contain_text("Following.")
        # Frozen by the keyboard: what comes meanwhile waits.
        page.locator("#freeze").focus()
        page.keyboard.press("Enter")
        whole.post(body(*(event(f"many/{number}", bucket=bucket) for number in range(260))))
        expect(status).to_contain_text("Frozen, 260 new.")
        assert rows.count() == 2
        look.shoot("events-frozen", whole=False)
        page.keyboard.press("Enter")
        expect(rows.first).to_contain_text("many/259")
        expect(rows).to_have_count(200)
        expect(status).to_contain_text("60 more were not shown")
        # The table stands still while somebody is on a link in it.
        rows.first.get_by_role("link").first.focus()
        whole.post(body(event("last", bucket=bucket)))
        expect(status).to_contain_text("1 new event.")
        expect(rows.first).to_contain_text("many/259")
        page.locator("#freeze").focus()
        expect(rows.first).to_contain_text("last")
        rows.first.get_by_role("link", name="ObjectCreated").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("ObjectCreated")


@NIGHTLY
def test_a_session_that_is_revoked_ends_while_its_page_is_open(browser: Browser, whole: System) -> None:
    made = whole.ask("POST", "/v1/tokens", json={"name": name(), "scopes": ["read"]}).json()
    until(lambda: whole.ask("GET", "/v1/tokens").status_code == 200)
    look = Visit(browser, whole.api.url)
    try:
        until(lambda: _signs_in(look, made["token"]), 60)
        whole.ask("DELETE", f"/v1/tokens/{made['name']}")
        look.page.wait_for_url(re.compile("/sign-in"))
        expect(look.page.get_by_text("The session has ended")).to_be_visible()
        look.check()
    finally:
        look.close()


@NIGHTLY
def test_a_wrong_scope_and_a_form_of_somebody_else_change_nothing(browser: Browser, whole: System) -> None:
    target = name()
    whole.add_target(f"webhook:{target}", target, endpoint="http://127.0.0.1:9/")
    with visit(browser, whole, "") as look:
        page = look.page
        page.goto("")
        for token in ("nonsense", INGEST):
            page.get_by_label("API token").fill(token)
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_role("alert")).to_be_visible()
            expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        look.sign_in(READ)
        page.goto(f"targets/webhook/{target}")
        expect(page.get_by_role("button", name="Pause")).to_have_count(0)
        assert page.request.post(f"targets/webhook/{target}/pause").status == 403
        page.get_by_role("button", name="Sign out").click()
        look.sign_in(ADMIN)
        page.goto(f"targets/webhook/{target}")
        page.evaluate("for (const each of document.querySelectorAll('input[name=form]')) each.value = 'forged'")
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_text("was not made for this session; nothing was changed")).to_be_visible()
    assert whole.target(f"webhook:{target}")["state"] != "paused"


@NIGHTLY
def test_the_history_of_an_object_is_found(browser: Browser, whole: System) -> None:
    bucket = name()
    whole.post(
        body(event("a b/é.jpg", bucket=bucket), event("a b/é.jpg", bucket=bucket), event("other", bucket=bucket))
    )
    with visit(browser, whole, READ) as look:
        page = look.page
        page.goto("events")
        page.get_by_label("Bucket").fill(bucket)
        page.get_by_role("button", name="Search").click()
        page.get_by_role("link", name="24h", exact=True).click()
        assert urlsplit(page.url).query == f"bucket={bucket}&since=24h"  # short enough to be kept as a link
        with page.expect_download() as saved:
            page.get_by_role("link", name="CSV").click()
        assert len(saved.value.path().read_text().splitlines()) == 4
        page.get_by_label("Key, for its history").fill("a b/é.jpg")
        page.get_by_role("button", name="Search").click()
        expect(page.locator("#events-found tr")).to_have_count(2)
        page.locator("#events-found tr").last.get_by_role("link", name="ObjectCreated").click()
        expect(page.locator(".order li")).to_have_count(2)
        expect(page.locator(".order .this")).to_have_count(1)


def _signs_in(look: Visit, token: str) -> bool:
    """Whether a new token is known to the process that answers: it is within a second."""
    look.page.goto("sign-in")
    look.page.get_by_label("API token").fill(token)
    look.page.get_by_role("button", name="Sign in").click()
    return look.page.get_by_role("heading", level=1).inner_text() != "Sign in"


@pytest.fixture(scope="module")
def busy(whole: System) -> Iterator[str]:
    """A target with events in every state, of a hostile name too, beside one that is paused and one that is away."""
    target = "photos"
    with services.receiver() as receiver:
        whole.add_target("webhook:search", target, endpoint=receiver.url)
        whole.ask("POST", "/v1/targets/webhook/search/pause", json={"reason": "the index is rebuilt"})
        whole.add_target("webhook:billing", target, endpoint=f"http://{services.LOOPBACK}:{services.free_port()}/")
        receiver.set(
            Answer(422, containing="DEAD", body="no such column: tags"),
            Answer(500, containing="AGAIN", body="internal error"),
            Answer(422, containing="script", body="<script>alert(1)</script>"),
        )
        whole.add_target(
            f"webhook:{target}",
            target,
            endpoint=receiver.url,
            retry_base="10m",
            retry_max_delay="10m",
            comment="a note",
        )
        events = [event(f"photos/2026/{number}.jpg", bucket=target) for number in range(12)]
        events += [event("DEAD/letter.txt", bucket=target), event("AGAIN/later.txt", bucket=target)]
        whole.post(body(*events, event("AGAIN/later.txt", bucket=target), event(HOSTILE, bucket=target)))
        until(lambda: _settled(whole, target), 60, what="14 events settled and two parked")
        whole.ask("POST", "/v1/replays", json={"target": f"webhook:{target}", "bucket": target, "prefix": "photos/"})
        until(lambda: whole.target("webhook:billing")["state"] == "unavailable", 60)
        whole.ask("PUT", "/v1/sources/kafka/minio", json={"brokers": "kafka.example.com:9092", "topic": "events"})
        reject(whole.database, b'{"Records": "' + b"\xe2\x80\xae" + b'<script>alert(1)</script>"}', b"\xff")
        whole.add_target("redis:mirror", "none", address=f"{services.LOOPBACK}:{services.free_port()}", key="mirror")
        runs, mirror = Reconciliations(whole.database), TargetId("redis", "mirror")
        for state, counts, problem in (("drift", {"missing": 1}, ""), ("failed", {}, LONG_REASON)):
            runs.end(run := runs.begin(mirror, target, lease=60_000), state, counts, problem=problem)
            store_findings(whole.database, run, [{"kind": "missing", "key": HOSTILE, "etag": "0" * 32}])
        yield target


def _settled(whole: System, target: str) -> bool:
    events = whole.target(f"webhook:{target}")["events"]
    return (events["delivered"], events["dead"], events["parked"]) == (12, 2, 2)


def pages(whole: System, target: str) -> dict[str, str]:
    """Every page by the name of its picture; the first ones have what others are made of, and a hostile name."""
    listed = whole.ask("GET", "/v1/events", params={"bucket": target}).json()["events"]
    by_key = {each["key"]: each["id"] for each in listed}
    rules = whole.ask("GET", "/v1/rules", params={"bucket": target}).json()["rules"]
    runs = whole.ask("GET", "/v1/reconciliations").json()["reconciliations"]
    return {
        "overview": "",
        "target": f"targets/webhook/{target}",
        "event-hostile": f"events/{by_key[HOSTILE]}",
        "dead-letters": "dead-letters",
        "target-edit": f"targets/webhook/{target}/edit",
        "target-types": "targets/new",
        "target-new": "targets/new?type=kafka",
        "target-remove": f"targets/webhook/{target}/remove",
        "events": f"events?bucket={target}",
        "events-followed": f"events?follow=1&bucket={target}",
        "event-parked": f"events/{by_key['AGAIN/later.txt']}",
        "event-dead": f"events/{by_key['DEAD/letter.txt']}",
        "retries": "retries",
        "rules": f"rules?try_bucket={target}&key=a",
        "rule-edit": f"rules/{rules[0]['number']}/edit",
        "sources": "sources",
        "source": "sources/kafka/minio",
        "source-message": "sources/kafka/minio/rejected/1",
        "source-types": "sources/new",
        "source-edit": "sources/kafka/minio/edit",
        "source-remove": "sources/kafka/minio/remove",
        "replays": f"replays?step=preview&target=webhook:{target}&bucket={target}",
        "reconciliations": "reconciliations",
        **{f"reconciliation-{number}": f"reconciliations/{run['id']}" for number, run in enumerate(runs)},
        "workers": "workers",
        "tokens": "tokens",
        "audit": "audit",
        "doctor": "doctor",
        "targets": "targets",
        "target-away": "targets/webhook/billing",
        "dead-letters-of-a-reason": f"dead-letters?target=webhook:{target}&reason=422",
        "missing": "nothing-here",
    }


@pytest.mark.timeout(600)
def test_every_page_is_accessible_and_fits_its_window_in_both_themes(
    browser: Browser, whole: System, busy: str
) -> None:
    themes: tuple[Any, ...] = ("light", "dark")
    found = pages(whole, busy)
    with visit(browser, whole) as look:
        problems = {}
        for picture, path in islice(found.items(), times(4, len(found))):
            look.page.set_viewport_size({"width": 1280, "height": 800})
            look.page.goto(path)
            look.page.wait_for_load_state("load")
            expect(look.page.locator("#theme")).to_be_visible()
            assert look.page.title() != "pwned"
            for theme in themes:
                look.page.emulate_media(color_scheme=theme)
                look.shoot(f"{picture}-{theme}", whole=False)
                if reported := look.problems(of_colours=theme != "light"):
                    problems[f"{picture}, {theme}"] = reported
            for width in (1280, 320):  # in any theme it is as wide
                look.page.set_viewport_size({"width": width, "height": 640})
                if too_wide := look.wide():
                    problems[f"{picture} at {width}"] = [f"{too_wide} pixels too wide"]
            for theme in themes:
                look.page.emulate_media(color_scheme=theme)
                look.shoot(f"{picture}-{theme}-320", whole=False)
        assert problems == {}
    with visit(browser, whole, token="") as look:
        look.page.goto("")
        for theme in themes:
            look.page.emulate_media(color_scheme=theme)
            look.shoot(f"sign-in-{theme}", whole=False)
            assert look.problems() == []


def test_no_word_is_broken_and_no_list_is_cut_off_at_any_width(browser: Browser, whole: System, busy: str) -> None:
    problems = {}
    with visit(browser, whole) as look:
        for picture, path in pages(whole, busy).items():
            look.page.goto(path)
            look.page.wait_for_load_state("load")
            for width in WIDTHS:
                look.page.set_viewport_size({"width": width, "height": 800})
                if found := look.layout_problems():
                    problems[f"{picture} at {width}"] = found
    assert problems == {}


def test_with_seven_findings_the_targets_are_in_sight(browser: Browser, whole: System, busy: str) -> None:
    with visit(browser, whole) as look:
        page = look.page
        page.set_viewport_size({"width": 1280, "height": 800})
        until(lambda: page.goto("") and page.locator(".findings > li:visible").count() >= 7, 60, what="the doctor")
        for finding in page.locator(".findings > li:visible").all():
            line, action = finding.bounding_box(), finding.locator(".do").bounding_box()
            assert line is not None
            assert action is not None
            assert (line["height"] < 45, action["width"] > 50) == (True, True), finding.inner_text()
        for tile in page.locator(".tiles small").all():
            place = tile.bounding_box()
            assert place is not None
            assert place["height"] < 20, f"it wraps: {tile.inner_text()}"
        assert page.locator(".tiles").evaluate("tiles => new Set([...tiles.children].map(e => e.offsetTop)).size") == 1
        for row in page.get_by_role("region", name="Table of targets").locator("tbody tr").all()[:3]:
            expect(row).to_be_in_viewport(ratio=1)
        # A line that is opened stays open while the page moves.
        opened = page.locator(".findings details").first
        opened.locator("summary").click()
        page.evaluate("document.getElementById('live').dataset.old = '1'")
        expect(page.locator("#live[data-old]")).to_have_count(0)
        expect(opened).to_have_attribute("open", "")
        # In a narrow window too a finding is short until it is opened: its text has one line, on a phone two.
        for width, most in ((768, 75), (360, 120)):
            page.set_viewport_size({"width": width, "height": 1024})
            page.goto("")
            heights = page.locator(".findings > li:visible").evaluate_all("all => all.map(one => one.offsetHeight)")
            assert max(heights) < most, (width, heights)
        # On a phone a row of a list is a card, which has its state beside its name.
        page.set_viewport_size({"width": 360, "height": 800})
        card = page.get_by_role("region", name="Table of targets").locator("tbody tr").first
        name, state, backlog, oldest = (
            card.locator(part).evaluate("part => part.getBoundingClientRect().toJSON()")
            for part in ("a.target", ".state", "td[data-label=Backlog]", "td[data-label=Oldest]")
        )
        assert state["right"] <= 360
        assert name["top"] < state["bottom"] <= backlog["top"] == oldest["top"]
        label = "cell => getComputedStyle(cell, '::before').content"
        assert card.locator("td[data-label=Backlog]").evaluate(label) == '"Backlog"'


@NIGHTLY
def test_a_person_signs_in_at_a_provider_of_another_site(browser: Browser) -> None:
    """A browser sends a strict cookie to no page that another site leads to, also not by a redirect."""
    url = f"sqlite:///{services.new_folder('console')}/outbox.db"
    options: Any = {"start": False, "partitions": 64, "token": ADMIN, "api_tokens": TOKENS}
    with services.redis() as broker, system(url, broker.url, **options) as whole:
        console = f"{whole.api.url}/console/"
        with openid_provider(f"{console}openid-callback") as provider:
            whole.api.settings = {
                **whole.settings,
                "BUCKETWIRE_OIDC_ISSUER": provider.issuer,
                "BUCKETWIRE_OIDC_CLIENT_ID": provider.client_id,
                "BUCKETWIRE_OIDC_CLIENT_SECRET": provider.secret,
                "BUCKETWIRE_OIDC_CONSOLE_URL": console,
                "BUCKETWIRE_OIDC_ADMIN": "platform",
            }
            whole.api.start()
            look = Visit(browser, whole.api.url)
            try:
                page = look.page
                ours = (whole.api.url, provider.issuer)
                page.route(lambda address: not address.startswith(ours), lambda route: route.abort())  # a font
                page.goto("events?bucket=images")
                assert look.problems_in_both_themes("sign-in-openid") == []
                page.get_by_role("link", name="Sign in with").click()
                page.locator("input[name=login]").fill("alice")
                page.locator("input[name=password]").fill("any")
                page.locator("button[type=submit]").click()
                page.get_by_role("button", name="Continue").click()
                expect(page.get_by_role("heading", level=1)).to_have_text("Events")
                expect(page.get_by_text("user alice")).to_be_visible()
                assert page.url == f"{console}events?bucket=images"
                # Beside it, because this log has as many: the strip of 64 partitions.
                whole.add_target("webhook:wide", "images", endpoint="http://127.0.0.1:9/")
                whole.post(body(*(event(f"{number}", bucket="images") for number in range(100))))
                page.goto("targets/webhook/wide")
                expect(page.locator(".heat > li")).to_have_count(64)
                page.evaluate("document.querySelector('.heat').scrollIntoView()")  # it is replaced every five seconds
                assert look.problems_in_both_themes("partitions-64") == []
                page.get_by_role("button", name="Sign out").click()
                expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
            finally:
                look.close()


@NIGHTLY
def test_the_theme_is_kept_and_curves_are_drawn(browser: Browser, whole: System, busy: str) -> None:
    with visit(browser, whole, color_scheme="light") as look:
        page = look.page
        page.add_init_script(RECORD_TEXTS)
        ground = "getComputedStyle(document.documentElement).backgroundColor"
        light = page.evaluate(ground)
        page.get_by_role("button", name="Switch between").click()
        assert page.evaluate(ground) != light
        page.goto(f"targets/webhook/{busy}")
        assert page.evaluate(ground) != light
        until(lambda: page.reload() and page.locator(".chart canvas").count() >= 3, 120, what="three samples to draw")
        page.locator(".charts").scroll_into_view_if_needed()
        look.shoot("curves-dark")
        page.wait_for_function("window.drawn.some(chart => chart.texts.length)")
        drawn = page.evaluate("window.drawn")
        for chart in drawn:
            ticks = [text for text in chart["texts"] if re.fullmatch(r"[\d:. kM-]+", text)]
            assert len(ticks) == len(set(ticks)), ticks
        places = [box for each in page.locator(".charts figure").all() if (box := each.bounding_box())]
        assert places[-1]["y"] == places[-2]["y"] or places[-1]["width"] > 1.5 * places[0]["width"], "none is alone"
        expect(page.locator(".u-legend").first).to_contain_text(re.compile(r"Delivered/s:?\s*[\d.]+/s"))
        # A value without neighbours is a point.
        page.evaluate(
            "document.querySelectorAll('#series tbody tr').forEach((row, number) => "
            "{ row.cells[6].textContent = number === 1 ? '7' : ''; })"
        )
        page.evaluate("window.points = 0")
        page.get_by_role("button", name="Switch between").click()
        page.wait_for_function("window.points > 0")
        assert "Asia/Calcutta" in str(page.locator("time").first.get_attribute("title")) or "Asia/Kolkata" in str(
            page.locator("time").first.get_attribute("title")
        )


@NIGHTLY
def test_rejected_messages_are_ticked_and_counted(browser: Browser, whole: System, busy: str) -> None:
    with visit(browser, whole) as look:
        page = look.page
        page.goto("sources/kafka/minio")
        page.get_by_label("Select all on this page").check()
        expect(page.locator(".selected-count")).to_have_text("(2)")
        page.get_by_label(re.compile("Select message")).first.uncheck()
        expect(page.locator(".selected-count")).to_have_text("(1)")


@NIGHTLY
def test_everything_can_be_read_without_scripts_and_changed_too(browser: Browser, whole: System, busy: str) -> None:
    with visit(browser, whole, java_script_enabled=False) as look:
        for path in pages(whole, busy).values():
            look.page.goto(path)
            expect(look.page.get_by_role("heading", level=1)).to_be_visible()
        look.page.goto(f"targets/webhook/{busy}")
        look.page.get_by_text("Values as a table").click()
        look.page.get_by_role("button", name="Pause").click()
        expect(look.page.locator(".verdict")).to_contain_text("paused")
        look.page.get_by_role("button", name="Resume").click()
        expect(look.page.locator(".verdict")).not_to_contain_text("paused")


@NIGHTLY
def test_filters_are_folded_and_say_what_they_are_set_to(browser: Browser, whole: System, busy: str) -> None:
    with visit(browser, whole) as look:
        page, fold = look.page, look.page.locator("details.fold")
        for path, narrow_only in (("dead-letters", False), ("retries", False), ("events", True)):
            for width in (360, 1280):
                page.set_viewport_size({"width": width, "height": 800})
                page.goto(f"{path}?target=webhook:{busy}")
                if width == 360 or not narrow_only:
                    expect(fold.locator("form")).to_be_hidden()
                    expect(fold.locator("summary")).to_have_text(f"Filter: target webhook:{busy}")
                    fold.locator("summary").click()
                expect(fold.locator("form")).to_be_visible()


@NIGHTLY
def test_the_keyboard_is_enough(browser: Browser, whole: System, busy: str) -> None:
    with visit(browser, whole, READ) as look:
        page = look.page
        page.goto("")
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_text("Skip to the content")
        page.keyboard.press("Enter")
        expect(page.locator("main:focus")).to_be_visible()
        link = page.locator(f"#t-webhook-{busy}")
        for _ in range(90):
            page.keyboard.press("Tab")
            if link.evaluate("node => node === document.activeElement"):
                break
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text(f"webhook:{busy}")
        assert page.get_by_role("button", name="Pause").count() == 0
        assert page.get_by_text("read only").count() == 1
