"""What the pages show, what their forms do, and that nothing which a sender chooses gets a meaning in them."""

from __future__ import annotations

import csv
import html
import io
import re
import shlex
import time
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urljoin, urlsplit

import orjson
import pytest
from click.testing import CliRunner

from app.api.listen.broadcaster import SocketHandedOver
from app.cli import bucketwire
from app.config.arn import TargetId
from app.config.declared_types import TYPES
from app.config.errors import BadSettings
from app.console import session
from app.console.views.targets import level
from app.events.model import Event
from app.outbox import search as searching
from app.outbox import tables, upkeep
from app.outbox.admin.replays import Replays
from app.outbox.delivery import transitions
from app.outbox.delivery.leases import Leases, new_token
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.policies import HEARTBEATS
from app.outbox.processes import Process, record_process
from app.outbox.reconcile.runs import BACKFILLING, Progress, Reconciliations
from app.outbox.tokens import Tokens
from app.release import VERSION
from app.rules.filters import Filters, Pairs
from app.rules.model import Rule
from tests.integration.console.conftest import ADMIN, TOKENS, Browser, Opened, Page
from tests.services import until
from tests.support.builders import add_target, event, registry
from tests.support.hostile_names import BUCKETS
from tests.support.scripted_target import Courier, ScriptedTarget
from tests.support.tuning import tune
from workers.delivery import retry
from workers.delivery.outcomes import DELIVERED, Exchange, Failed, HttpMessage, Outcome, Rejected
from workers.telemetry.attempt_recorder import AttemptRecorder

PAGES = (
    "", "events", "events?state=dead", "events?follow=1", "events?follow=1&bucket=images&key=again",
    "dead-letters", "dead-letters?reason=none", "dead-letters?target=webhook:none",
    "retries", "retries?bucket=none", "rules", "rules/new", "rules?try_bucket=images&key=a", "replays",
    "replays?step=preview&target=webhook:audit", "reconciliations", "processes", "tokens", "tokens?name=x", "audit",
    "audit?action=target", "targets", "targets/new", "targets/new?type=kafka", "targets/webhook/audit",
    "targets/webhook/audit/edit", "targets/webhook/audit/remove", "targets/webhook/audit?since=7d",
    "sign-in", "events?since=1h&bucket=images", "dead-letters?since=1h",
)  # fmt: skip
PAGES_ALIKE = {  # as others of these, with a filter
    "events?state=dead", "events?follow=1", "events?since=1h&bucket=images", "dead-letters?reason=none",
    "dead-letters?target=webhook:none", "dead-letters?since=1h", "retries?bucket=none", "tokens?name=x",
    "audit?action=target", "targets/new", "targets/webhook/audit?since=7d",
}  # fmt: skip
# To a page, its links and its forms.
HOSTILE_TO_PAGES = {"new\nline", "<script>alert(1)</script>", "%s%n%41", "..", "../../etc/passwd", "日本🎉"}

# One of many, a noun in both numbers at once, a sentence that ends twice, and what Markdown would hide.
MISWRITTEN = (
    r"(?<![\d.,:-])1 (?:[a-z]+ )?(?:attempts|events|letters|members|messages|processes|rules|targets)\b"
    r"|\w(?<!http)(?<!amqp)\(s\)|\w\.\.(?!\.)|\\\*"
)
TEMPLATES = Path(__file__).parents[3] / "app/console/templates"


def run(database: Database, target: object, script: Callable[[Event], Outcome]) -> None:
    """Attempt everything that is due at a target."""
    Courier(database, target, ScriptedTarget(script)).run()  # type: ignore[arg-type]


@pytest.fixture
def busy(local: Browser, database: Database) -> Browser:
    """A console over a log with an event in every delivery state, of hostile names."""
    target = add_target(database, "audit")
    registry(database).pause(add_target(database, "paused", bucket="images"), "for <b>lunch</b>")
    upkeep.record_heartbeat(database, upkeep.DRAIN, now_ms())
    Log(database).append([[event("good"), event("dead"), event("again"), event("again"), event("late", bucket="docs")]])

    def script(given: Event) -> Outcome:
        reasons = {"dead": Rejected("400 <script>alert(1)</script>"), "again": Failed("500 broken", retry_after=600)}
        return reasons.get(given.key, DELIVERED)

    run(database, target, script)
    return local


def address(page: Page, path: str, link: str) -> str:
    """Where a link of a page at this path leads, as a browser resolves it."""
    return urljoin(f"http://localhost/console/{path}", link)


@pytest.mark.nightly(
    "each page, and one with each kind of filter: a filter is a query of the same page",
    when=lambda path: path in PAGES_ALIKE,
)
@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_and_runs_nothing_but_our_files(busy: Browser, path: str) -> None:
    page = busy.get(path)
    assert page.status in (200, 404), page.text
    policy = page.response.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert page.response.headers["X-Content-Type-Options"] == "nosniff"
    assert page.response.headers["Cache-Control"] == "no-store"
    assert len(page.all("h1")) == 1
    assert len(page.all("main")) == 1
    assert [given for given in page.all("script") if not given.get("src")] == []
    assert page.all("style") == []
    for tag, given in page.tags:
        assert "style" not in given, (tag, given)
        assert not [name for name in given if name.startswith(("on", "hx-on"))], (tag, given)
        assert given.get("target") is None
        for name in ("href", "src", "action", "formaction", "hx-get"):
            assert not re.match(r"/|[a-z]+:", given.get(name, "")), (tag, given)
    ids = [given["id"] for _, given in page.tags if "id" in given]
    assert len(ids) == len(set(ids)), sorted(ids)
    assert re.findall(MISWRITTEN, page.text) == []
    check_labels(page)


def check_labels(page: Page) -> None:
    """In a narrow window a row is a card: each value has its column's name, or a place of its own."""
    for table in re.findall(r'<table class="list cards">(.*?)</table>', page.response.text, re.DOTALL):
        columns = [re.sub("<[^>]+>", "", head) for head in re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table)]
        for cell in re.findall(r"<td[^>]*>", table):
            label = re.search('data-label="([^"]+)"', cell)
            assert re.search(r'class="(?:tick|lead|row-actions)"', cell) or (label and label[1] in columns), cell


@pytest.mark.nightly(
    "behind a prefix: a link that is wrong without one is wrong with it", when=lambda prefix: prefix == ""
)
@pytest.mark.parametrize("prefix", ["", "/tools/bucketwire"])
def test_every_link_leads_to_a_page_behind_whatever_prefix(busy: Browser, browse: Opened, prefix: str) -> None:
    browser, found = browse(prefix=prefix) if prefix else busy, dict[str, str]()
    console = f"http://localhost{prefix}/console/"
    for path in PAGES:
        page = browser.get(path)
        for tag, name in (("a", "href"), ("link", "href"), ("script", "src"), ("form", "action"), ("div", "hx-get")):
            for given in page.all(tag):
                whole = urljoin(f"{console}{path}", given.get(name, ""))
                assert whole.startswith(console), (path, given)
                if given.get("method") != "post":
                    found[whole.partition("#")[0].removeprefix(console)] = path
    assert len(found) > 40
    for link, path in found.items():
        assert browser.get(link).status in (200, 303), (link, path)


def test_the_console_is_there_with_and_without_a_slash(busy: Browser) -> None:
    for whole in ("/console", "/console/"):
        page = Page(busy.client.get(whole))
        [events] = [given["href"] for given in page.all("a") if given["href"].endswith("/events")]
        assert urljoin(f"http://localhost{whole}", events) == "http://localhost/console/events"


def test_what_s3_would_take_is_the_consoles_if_nobody_signed_it(busy: Browser) -> None:
    for path in (
        "?events=s3:ObjectCreated:*",
        "?location",
        "?notification",
        "events?events=s3:ObjectCreated:Put",
        "?policy",
    ):
        page = Page(busy.client.get(f"/console/{path}" if not path.startswith("?") else f"/console{path}"))
        assert page.status == 200, path
        assert page.response.mimetype == "text/html"
    for signed in ({"Authorization": "AWS4-HMAC-SHA256 Credential=x"}, {}):
        path = "/console?location" if signed else "/console?location&X-Amz-Signature=x"
        assert busy.client.get(path, headers=signed).mimetype == "application/xml"  # a bucket may be called console
    assert busy.client.get("/console-images?location").mimetype == "application/xml"


def test_a_browser_is_led_to_the_console_and_a_probe_is_answered(busy: Browser) -> None:
    browsers = "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"
    answer = busy.client.get("/", headers={"Accept": browsers})
    assert (answer.status_code, answer.headers["Location"]) == (303, "console/")
    for accept in ("*/*", "application/json", "", "text/plain"):
        answer = busy.client.get("/", headers={"Accept": accept})
        assert (answer.status_code, answer.get_json()["name"]) == (200, "bucketwire"), accept


@pytest.mark.parametrize(
    "path",
    ["nothing", "targets/webhook/none", "targets/nats/..", "events/none", "rules/77/edit", "static/none", "a//b"],
)
def test_what_is_not_there_is_said_on_a_page(busy: Browser, path: str) -> None:
    page = busy.get(path)
    assert page.status in (400, 404), path
    assert "Content-Security-Policy" in page.response.headers


def test_files_are_kept_by_their_content(busy: Browser) -> None:
    page = busy.get("")
    for given in [*page.all("script"), *page.all("link")]:
        answer = busy.get((given.get("src") or given["href"]).removeprefix("./"))
        assert answer.status == 200
        assert "max-age=31536000" in answer.response.headers["Cache-Control"]
    assert busy.get("static/../pages.py").status == 404
    assert busy.get("static/%2e%2e/pages.py").status == 404


ODD = "".join(map(chr, [*range(1, 32), 127, 0x202E, 0x2066, 0x200B, 0xFEFF])) + "\"'<>&`${{7*7}}{%" + "ü🎉" * 480


@pytest.mark.parametrize(
    "key", ["<script>alert(1)</script>", "\"onmouseover='alert(1)'x=\"", "a\u202egpj.exe", "a b+c%2F..", ODD]
)
def test_a_hostile_key_is_text_on_every_page(local: Browser, database: Database, key: str) -> None:
    target = add_target(database, "audit", values={"comment": "<script>alert(2)</script>"})
    bucket = "<script>alert(1)</script>"
    Log(database).append(
        [[event(key, bucket=bucket), event(f"{key}2", bucket=bucket), event(f"{key}3", bucket=bucket)]]
    )

    def script(given: Event) -> Outcome:
        if given.key == key:
            return Rejected(f"400 {key[:500]}")
        return Failed(f"500 {key[:500]}", retry_after=600) if given.key.endswith("2") else DELIVERED

    run(database, target, script)
    ours = {tag for each in TEMPLATES.glob("*.html") for tag in re.findall(r"<([a-z]+[1-6]?)", each.read_text())}
    listed = local.get("events")
    [first] = [given["href"] for given in listed.all("a") if given.get("title", "") == _event_id(database, key)]
    history = [given["href"] for given in listed.all("a") if "key=" in given["href"]]
    assert parse_qs(urlsplit(history[-1]).query)["key"] == [key]
    for path in (
        first,
        *history,
        "dead-letters",
        "retries",
        "targets/webhook/audit",
        f"rules?try_bucket={bucket}&key=x",
    ):
        page = local.get(path.removeprefix("./"))
        assert page.status == 200, page.text
        assert {tag for tag, _ in page.tags} <= ours | {"bdi", "wbr", "time", "polyline", "polygon"}
        assert [given for given in page.all("script") if not given.get("src")] == []
        assert not [given for _, given in page.tags if "onmouseover" in given]
        body = page.response.get_data(as_text=True)
        for character in ("\u202e", "\u2066", "\u200b"):
            shown = re.sub(r'(href|value|hx-get)="[^"]*"', "", body)
            assert character not in shown


def _event_id(database: Database, key: str) -> str:
    with database.reading() as connection:
        rows = connection.execute(tables.events.select()).all()
    return next(row.id for row in rows if row.key == key)


@pytest.mark.nightly(
    "six names that are hostile to a page; the console makes no statement of a name, and test_events.py has all",
    when=lambda bucket: bucket not in HOSTILE_TO_PAGES,
)
@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_rule_for_a_hostile_bucket_can_be_added_edited_tried_and_removed(
    local: Browser, database: Database, bucket: str
) -> None:
    add_target(database, "audit", bucket="images")
    page = local.post("rules/new", bucket=bucket, events="s3:ObjectCreated:*", target="webhook:audit")
    if page.status == 400:  # what no rule can name
        assert len(registry(database).rules()) == 1
        return
    assert page.status == 303
    [_, added] = registry(database).rules()
    assert added.rule.bucket == bucket.strip()
    edit = local.get(f"rules/{added.row_id}/edit")
    assert edit.values("bucket") == [bucket.strip()]
    changed = local.post(
        f"rules/{added.row_id}/edit", bucket=bucket, events="s3:ObjectRemoved:*", target="webhook:audit", suffix=".jpg"
    )
    assert changed.status == 303
    [_, again] = registry(database).rules()
    assert (again.rule.suffix, again.rule.events) == (".jpg", ("s3:ObjectRemoved:*",))
    assert local.post(f"rules/{again.row_id}/remove", "rules").status == 303
    assert len(registry(database).rules()) == 1


def test_a_target_with_a_problem_is_not_shown_as_one_that_runs(local: Browser, database: Database) -> None:
    add_target(database, "audit", values={"queue_limit": "1"}, bucket="images")
    add_target(database, "other", bucket="docs")
    Log(database).append([[event("a", bucket="images")]])
    for path in ("", "targets"):
        text = local.get(path).text
        assert re.search(r"webhook:audit \S*problem ", text), path
        assert re.search(r"webhook:other \S*running ", text), path
    page = local.get("targets/webhook/audit")
    assert "its queue is full" in page.text
    assert not re.search(r"\S*running", page.text.partition("its queue is full")[0]), "right above what is wrong"


def test_commands_in_findings_are_written_as_commands_and_what_is_well_has_no_button(local: Browser) -> None:
    page = local.get("doctor")
    html_text = page.response.get_data(as_text=True)
    assert "`" not in page.text
    assert re.search(r"<code>.*bucketwire target set", html_text)
    well = [line for line in html_text.split("<li ") if ">ok<" in line]
    assert well
    assert not [line for line in well if 'class="button"' in line]


def test_a_rule_that_is_wrong_is_said_beside_its_field(local: Browser, database: Database) -> None:
    add_target(database, "audit")
    page = local.post("rules/new", bucket="images", events="s3:Nothing", target="webhook:audit", prefix=" a")
    assert page.status == 400
    assert "s3:Nothing" in page.text
    assert page.values("prefix") == [" a"]
    assert page.values("events") == ["s3:Nothing"]
    assert local.post("rules/new", bucket="images", events="*", target="webhook:none").status == 400


def test_filters_are_added_shown_tried_and_changed(local: Browser, database: Database) -> None:
    add_target(database, "audit", bucket="other")
    assert "Metadata" not in local.get("rules").text
    filters = {"regex": " a+", "metadata": "color=<b>\r\n\r\nx=y ", "tags": "team=x", "min_size": "1MiB"}
    added = local.post("rules/new", bucket="images", events="*", target="webhook:audit", **filters)
    assert added.status == 303
    [_, stored] = registry(database).rules()
    assert stored.rule.filters.members == {
        "regex": " a+", "metadata": {"color": "<b>", "x": "y "}, "tags": {"team": "x"}, "min_size": 1 << 20,
    }  # fmt: skip
    page = local.get("rules")
    assert "size at least 1MiB" in page.text
    assert "tag team=x" in page.text
    carried = {"size": "1048576", "metadata": "color=<b>\nx=y ", "tags": "team=x\nb=c"}
    assert "goes to: webhook:audit" in local.get("rules", {"try_bucket": "images", "key": " aa", **carried}).text
    assert "No rule matches" in local.get("rules", {"try_bucket": "images", "key": " aa", "size": "5"}).text
    wrong = local.get("rules", {"try_bucket": "images", "tags": "team"})
    assert (wrong.status, "has a line without =" in wrong.text) == (400, True)
    edit = local.get(f"rules/{stored.row_id}/edit")
    assert (edit.values("regex"), edit.values("min_size")) == ([" a+"], ["1MiB"])
    assert "color=<b>" in edit.text
    assert "--min-size 1MiB" in edit.text
    kept = {**filters, "tags": "", "max_size": "2MiB"}
    assert (
        local.post(f"rules/{stored.row_id}/edit", bucket="images", events="*", target="webhook:audit", **kept).status
        == 303
    )
    [_, changed] = registry(database).rules()
    assert changed.rule.filters.members.keys() == {"regex", "metadata", "min_size", "max_size"}
    for name, value in {"tags": "team", "min_size": "big", "regex": "("}.items():
        refused = local.post("rules/new", bucket="images", events="*", target="webhook:audit", **{name: value})
        assert refused.status == 400
        assert any(tag.get("name") == name and tag.get("aria-invalid") for _, tag in refused.tags), name


def test_an_entry_whose_name_has_an_equals_sign_survives_an_edit(local: Browser, database: Database) -> None:
    audit = add_target(database, "audit", bucket="other")
    tags = Pairs({"cost=center": "7", "team": "a=b"})
    rule = Rule(bucket="images", events=("*",), target=audit, filters=Filters(metadata=Pairs({"=": "="}), tags=tags))
    number = registry(database).add_rule(rule)
    edit = local.get(f"rules/{number}/edit")
    fields = {"metadata": "===", "tags": "team=a=b\r\ncost=center=7\r\nnew=x=y", "suffix": ".jpg"}
    assert "cost=center=7" in edit.text
    changed = local.post(f"rules/{number}/edit", bucket="images", events="*", target="webhook:audit", **fields)
    assert changed.status == 303
    [_, stored] = registry(database).rules()
    assert stored.rule.filters.members == {"metadata": {"=": "="}, "tags": {**tags, "new": "x=y"}}


def test_an_event_that_was_discarded_says_so_and_why(local: Browser, database: Database) -> None:
    add_target(database, "audit", queue_limit=1)
    Log(database).append([[event("a")]])
    Log(database).append([[(lost := event("b"))]])
    page = local.get(f"events/{lost.id}")
    sentence = "It was discarded when it was recorded, and never goes there: its queue was full; queue_limit is 1 now."
    assert sentence in page.text
    assert "Deliver again" not in page.text
    assert "✕discarded webhook:audit" in local.get("events").text
    again = local.post(f"events/{lost.id}/replay", "rules", target="webhook:audit")
    assert "it was discarded" in local.get(f"events/{lost.id}?{urlsplit(again.location).query}").text
    assert Replays(database).list() == []


def test_a_key_is_tried_on_the_rules(local: Browser, database: Database) -> None:
    add_target(database, "audit", bucket="images", events=("s3:ObjectCreated:*",))
    assert "goes to: webhook:audit" in local.get("rules?try_bucket=images&key=a").text
    assert "No rule matches" in local.get("rules?try_bucket=images&key=a&event=s3:ObjectRemoved:Delete").text
    assert "No rule matches" in local.get("rules?try_bucket=docs&key=a").text


def test_the_overview_says_what_is_wrong_and_what_to_do(busy: Browser, database: Database) -> None:
    page = busy.get("")
    assert "‖paused 1 ✓running 1" in page.text
    assert "paused: for <b>lunch</b>" in page.text
    assert "1 dead letter, not retried any more; mend the cause, then replay them" in page.text
    assert "bucketwire dead-letter ls --target webhook:audit" in page.text
    assert "./targets/webhook/paused/resume" in page.actions
    assert [given["href"] for given in page.all("a") if given.get("aria-label") == "Show: webhook:audit"] == [
        "./dead-letters?target=webhook%3Aaudit"
    ]
    busy.post("targets/webhook/paused/resume", "")
    until(lambda: "paused: for <b>lunch</b>" not in busy.get("").text)  # the doctor looks once a second
    empty = registry(database)
    for stored in empty.targets():
        empty.remove(stored.target, force=True)
    page = busy.get("")
    assert "Nothing to deliver to yet" in page.text
    assert "bucketwire target set" in page.text


def test_a_targets_page_balances_its_counters_and_groups_its_errors(busy: Browser) -> None:
    page = busy.get("targets/webhook/audit")
    assert "they balance" in page.text
    live = busy.get("targets/webhook/audit?live=1")
    assert ("recorded 5" in re.sub(r"[=+]", "", live.text), "Over time" in live.text) == (True, False)
    for fact in (
        "recorded 5", "delivered 2", "parked 2", "dead 1", "1 400 <script>alert(1)</script>", "500 broken 1 attempt",
        "bucketwire target pause webhook:audit", "bucketwire target rm webhook:audit",
    ):  # fmt: skip
        assert fact in re.sub(r"[=+]", "", page.text), fact
    busy.post("targets/webhook/audit/pause", "targets/webhook/audit", reason="the disk is full..")
    assert "the disk is full. Its events wait" in busy.get("targets/webhook/audit").text
    paused = busy.get("targets/webhook/paused")
    assert paused.text.count("for <b>lunch</b>") == 1, "once, although the doctor finds it too"
    assert busy.post("targets/webhook/paused/resume", "targets/webhook/paused").status == 303
    assert "paused" not in busy.get("targets/webhook/paused").all("h1")


def test_a_targets_page_begins_with_what_fails_and_what_to_do(busy: Browser) -> None:
    page = busy.get("targets/webhook/audit?live=1")
    places = [
        page.text.index(part)
        for part in ("running It gets its events", "1 dead letter, not retried", "What fails", "Retry now", "Backlog")
    ]
    assert places == sorted(places)
    [event] = page.values("event")
    assert page.actions >= {"../../targets/webhook/audit/retry"}
    for data, due in (({"event": "none"}, "0 events"), ({"event": event}, "1 event is"), ({}, "1 event is")):
        retried = busy.post("targets/webhook/audit/retry", "targets/webhook/audit", **data)
        shown = busy.get(f"targets/webhook/audit?{urlsplit(retried.location).query}").text
        assert (due in shown, "next now" in shown) == (True, due == "1 event is"), due
    assert busy.get("targets/webhook/paused").text.count("Retry now") == 0, "nothing is retried"


def test_a_targets_page_shows_the_settings_in_force_beside_those_that_were_set(
    local: Browser, database: Database
) -> None:
    add_target(database, "audit", values={"endpoint": "http://127.0.0.1:9/", "queue_dir": "/q", "queue_limit": "0"})
    text = local.get("targets/webhook/audit").text
    set_ones, defaults = text[text.index("Settings") :].split("In force without being set")
    assert re.search("queue_limit 0 in force: 100000, as queue_dir is set", set_ones)
    assert re.search("max_attempts 20 .*timeout 5s", defaults)
    assert "queue_dir" not in defaults


def test_a_targets_partitions_show_what_waits_and_who_has_them(busy: Browser, database: Database) -> None:
    page = busy.get("targets/webhook/audit?live=1")
    assert "Nothing waits in 15 of 16; some events in 1, 100 or more in 0. Leased: 0." in page.text
    paused = registry(database).target(TargetId("webhook", "paused"))
    Leases(database, 600_000).claim(paused.row_id, [0, 1, 2], new_token(), now_ms())
    page = busy.get("targets/webhook/paused")
    assert "Leased: 3, by 1 worker process." in page.text
    assert f"leased {new_token().rpartition(':')[0]}" in re.sub(r"[▸]", "", page.text)
    cells = [given["class"] for given in page.all("li") if given.get("title", "").startswith("partition ")]
    assert len(cells) == 16
    assert sum("leased" in given for given in cells) == 3
    assert sum("some" in given for given in cells) >= 1


@pytest.mark.parametrize(
    ("pending", "parked", "more", "found"),
    [
        (0, 0, False, "none"), (1, 0, False, "some"), (0, 1, False, "some"), (50, 49, False, "some"),
        (50, 50, False, "much"), (1000, 0, True, "much"), (3, 0, True, "much"), (0, 0, True, "some"),
    ],
)  # fmt: skip
def test_a_partition_has_nothing_some_or_much(pending: int, parked: int, more: bool, found: str) -> None:
    assert level({"pending": pending, "parked": parked, "more": more}) == found


def test_the_log_is_followed_with_the_filters_that_a_new_event_has(busy: Browser, database: Database) -> None:
    page = busy.get("events?bucket=images&state=dead&since=2026-01-01T00:00:00Z&target=webhook:audit")
    [follow] = [given["href"] for given in page.all("a") if "follow=1" in given["href"]]
    assert follow == "./events?follow=1&bucket=images&target=webhook%3Aaudit"
    page = busy.get(follow.removeprefix("./"))
    [tail] = [given for given in page.all("div") if given.get("id") == "tail"]
    assert tail["data-stream"] == "./events/stream?bucket=images&target=webhook%3Aaudit"
    assert tail["data-after"] == busy.client.get("/v1/events?limit=1").get_json()["events"][0]["id"]
    assert page.values("follow") == ["1"]
    assert {given.get("name") for given in page.all("select")} == {"target"}
    assert "Without scripts this page does not move" in page.text
    assert "None on this page" not in page.text
    assert [given["src"] for given in page.all("script") if "tail.js" in given["src"]]
    assert not [given["src"] for given in busy.get("events").all("script") if "tail.js" in given["src"]]
    history = busy.get("events?follow=1&bucket=images&key=again")
    [tail] = [given for given in history.all("div") if given.get("id") == "tail"]
    assert (tail["data-stream"], tail["data-key"]) == ("./events/stream?bucket=images&prefix=again", "again")
    wrong = busy.get("events?follow=1&events=s3:Nothing")
    assert (wrong.status, [given for given in wrong.all("div") if given.get("id") == "tail"]) == (400, [])


def test_a_stream_for_a_page_is_handed_over_and_needs_the_session(busy: Browser, browse: Opened) -> None:
    with pytest.raises(SocketHandedOver):
        busy.get("events/stream?bucket=images")
    assert Page(busy.client.head("/console/events/stream")).status == 200
    assert busy.get("events/stream?events=s3:Nothing").status == 400
    assert busy.get("events/stream?target=webhook:none").status == 404
    stranger = browse(api_tokens=TOKENS)
    assert "sign-in" in stranger.get("events/stream").location
    stranger.sign_in(ADMIN)
    with pytest.raises(SocketHandedOver):
        stranger.get("events/stream")


def test_a_search_that_found_nothing_yet_goes_on_by_itself(busy: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, searching, "SEARCH", max_seqs=1, first_window_seqs=1, window_seqs=1)
    page = busy.get("events?prefix=none")
    [search] = [given for given in page.all("section") if "hx-get" in given]
    assert (search["hx-trigger"], search["hx-target"]) == ("load delay:100ms", "#results")
    for _ in range(10):
        found = [given for given in page.all("section") if "hx-get" in given]
        if not found:
            break
        page = busy.get(found[0]["hx-get"].removeprefix("./"))
    assert "The log was searched to its end" in page.text


def test_a_test_event_is_recorded_and_followed(busy: Browser) -> None:
    page = busy.post("targets/webhook/audit/test", "targets/webhook/audit")
    shown = busy.get(
        address(page, "targets/webhook/audit/test", page.location).removeprefix("http://localhost/console/")
    )
    assert "s3:TestEvent" in shown.text
    assert "pending" in shown.text
    assert "Connected and logged in …waiting" in shown.text
    assert "The test event is recorded" in shown.text
    assert [given for _, given in shown.tags if given.get("hx-trigger")]  # it follows the event


def test_an_events_page_explains_each_state(busy: Browser, database: Database) -> None:
    def shown(key: str) -> Page:
        return busy.get(f"events/{_event_id(database, key)}")

    assert "The target has confirmed it" in shown("late").text
    assert "rejected, or ran out of attempts" in shown("dead").text
    assert "tried again, after a growing and random wait" in shown("again").text
    assert "the target is paused" in shown("good").text
    again = [row for row in busy.get("events?bucket=images&key=again").all("a") if "/events/" in row["href"]]
    newest = busy.get(again[0]["href"].removeprefix("./"))
    assert "waits behind an earlier event of the same object" in newest.text
    assert "this one is the newest" in newest.text


def test_an_events_page_has_the_request_and_the_answer_of_the_last_failure(
    local: Browser, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RECORD_INTERVAL_SECONDS", 3600.0)
    target, recorder = add_target(database, "audit"), AttemptRecorder(database)
    Log(database).append([[event("bad")]])
    request = HttpMessage("POST https://h:443", {"Content-Type": "application/json"}, "{}", 2048)
    answer = HttpMessage("HTTP 422 No", {"Server": "<b>x</b>"}, "<script>alert(1)</script>\nno", 28)
    outcome = Rejected("no", exchange=Exchange(request, answer))
    Courier(database, target, ScriptedTarget(lambda _: outcome), recorder=recorder).run()
    recorder.close()
    page = local.get(f"events/{_event_id(database, 'bad')}")
    assert "Request 2 of 2,048 bytes of its body POST https://h:443 Content-Type: application/json {}" in page.text
    assert "Answer HTTP 422 No Server: <b>x</b> <script>alert(1)</script> no" in page.text


def test_an_events_page_says_when_a_target_has_confirmed_it(local: Browser, database: Database) -> None:
    target, recorder = add_target(database, "audit"), AttemptRecorder(database)
    Log(database).append([[event("good")]])
    Courier(database, target, ScriptedTarget(lambda _: DELIVERED), recorder=recorder).run()
    recorder.close()
    page = local.get(f"events/{_event_id(database, 'good')}")
    assert re.search(r"The target has confirmed it\. [0-9-]{10} [0-9:]{8} UTC recorded", page.text)


def test_an_events_page_says_by_what_it_came(busy: Browser, database: Database) -> None:
    pulled = event("pulled")._replace(origin="source kafka:minio minio 1235 3")
    posted = event("posted")._replace(origin="request minio-1 minio")
    Log(database).append([[pulled, posted]])
    page = busy.get(f"events/{pulled.id}")
    assert "source kafka:minio, position 1235 of share 3, sender minio" in page.text
    assert [link for link in page.all("a") if link["href"].endswith("sources/kafka/minio")]
    assert "request, token minio-1, sender minio" in busy.get(f"events/{posted.id}").text
    assert "came by" not in busy.get(f"events/{_event_id(database, 'good')}").text


def test_an_events_page_shortens_a_long_record(busy: Browser, database: Database) -> None:
    long = event("long")
    long = long._replace(record=f'{long.record[:-1]},"note":"{"x" * 2_000_000}"}}')
    Log(database).append([[long, event("long")]])
    page = busy.get(f"events/{long.id}")
    assert "1,999,000 more characters" in page.text
    assert "Long values are shortened" in page.text
    assert len(page.text) < 50_000
    assert "Long values are shortened" not in busy.get(f"events/{_event_id(database, 'good')}").text


def test_an_event_is_sent_again_in_the_way_that_its_state_needs(busy: Browser, database: Database) -> None:
    for key, sentence in (
        ("late", "delivers it to webhook:audit again"),
        ("dead", "delivered again"),
        ("again", "due at once"),
    ):
        path = f"events/{_event_id(database, key)}"
        page = busy.post(f"{path}/replay", path, target="webhook:audit")
        assert page.status == 303
        following = urlsplit(page.location).query
        assert sentence in busy.get(f"{path}?{following}").text, key
    got: list[str] = []

    def script(given: Event) -> Outcome:
        got.append(given.key)
        return DELIVERED

    target = next(stored.target for stored in registry(database).targets() if stored.target.name == "audit")
    run(database, target, script)
    assert sorted(set(got)) == ["again", "dead", "late"]


def test_a_result_is_shown_for_a_minute_and_nobody_else_can_write_one(
    busy: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = busy.post("targets/webhook/audit/pause", "targets/webhook/audit")
    query = urlsplit(page.location).query
    assert "its events wait." in busy.get(f"targets/webhook/audit?{query}").text
    assert "Call me" not in busy.get("?notice=Call+me").text
    later = time.time() + 120
    monkeypatch.setattr("app.console.session.time.time", lambda: later)
    assert "webhook:audit is paused; its events wait." not in busy.get(f"targets/webhook/audit?{query}").text


# --- dead letters and retries


def test_dead_letters_are_grouped_selected_and_replayed(local: Browser, database: Database) -> None:
    target = add_target(database, "audit")
    Log(database).append([[event(f"k{number}") for number in range(5)]])
    run(database, target, lambda given: Rejected("400 bad" if given.key < "k3" else "403 forbidden"))
    page = local.get("dead-letters")
    assert "3 400 bad" in page.text
    assert "2 403 forbidden" in page.text
    boxes = page.values("ids")
    assert len(boxes) == 5
    assert local.post("dead-letters/replay", "dead-letters", scope="selected").location.startswith(
        "../dead-letters?notice="
    )
    assert len(local.get("dead-letters").values("ids")) == 5
    local.post("dead-letters/replay", "dead-letters", scope="selected", ids=boxes[:1])
    assert len(local.get("dead-letters").values("ids")) == 4
    local.post("dead-letters/replay", "dead-letters", scope="matching", reason="403 forbidden")
    left = local.get("dead-letters")
    assert ("403 forbidden" in left.text, "400 bad" in left.text) == (False, True)
    # Without a script, a box that is ticked does not change the other choice.
    ticked, *others = left.values("ids")
    chosen = {"scope": "matching", "reason": "400 bad", "ids": ticked}
    for step in ("preview", "purge"):
        page = local.post(f"dead-letters/{step}", "dead-letters", **chosen)
        assert ("1 dead letter" in page.text, page.values("ids")) == (True, [ticked]), step
    local.post("dead-letters/replay", "dead-letters", **chosen)
    assert local.get("dead-letters").values("ids") == others
    local.post("dead-letters/replay", "dead-letters", scope="matching")
    assert "No dead letters" in local.get("dead-letters").text


def test_a_reason_is_shown_whole_the_filter_is_folded_and_no_command_purges_everything(
    local: Browser, database: Database
) -> None:
    target, reason = add_target(database, "audit"), "400 " + "a long story " * 60 + "ends here"
    Log(database).append([[event("a"), event("b")]])
    run(database, target, lambda _: Rejected(reason))
    page = local.get("dead-letters")
    assert page.text.count(reason) == 3, "in its group and at each dead letter"
    assert [given for given in page.all("details") if "fold" in given.get("class", "")] == [{"class": "fold always"}]
    assert "bucketwire dead-letter replay --all" in page.text
    for shown in (page, local.post("dead-letters/purge", "dead-letters", scope="matching"), local.get("retries")):
        assert re.findall(r"bucketwire (?:dead-letter purge|retry give-up)[^$]*--all", shown.text) == []
    assert "bucketwire dead-letter purge --bucket images" in local.get("dead-letters?bucket=images").text


def test_a_reason_that_is_chosen_means_all_that_have_it(local: Browser, database: Database) -> None:
    target = add_target(database, "audit")
    Log(database).append([[event("a"), event("b")]])
    run(database, target, lambda _: Rejected("400 bad"))

    def checked(path: str) -> list[str]:
        return [given["value"] for given in local.get(path).all("input") if "checked" in given]

    [reason] = [given["href"] for given in local.get("dead-letters?bucket=images").all("a") if "=400" in given["href"]]
    query = parse_qs(urlsplit(reason).query)
    assert query == {"target": ["webhook:audit"], "bucket": ["images"], "reason": ["400 bad"]}
    assert checked(reason.removeprefix("./")) == ["matching"]
    assert checked("dead-letters") == checked("dead-letters?target=webhook:audit") == ["selected"]


def test_an_events_page_begins_with_what_needs_somebody(local: Browser, database: Database) -> None:
    good, bad, late, gone = (add_target(database, name) for name in ("a-good", "b-good", "late", "rejects"))
    Log(database).append([[(one := event("a"))]])
    for target, outcome in ((good, DELIVERED), (bad, DELIVERED), (gone, Rejected("400 bad"))):
        run(database, target, lambda _, outcome=outcome: outcome)  # type: ignore[misc]
    registry(database).pause(late, "lunch")
    page = local.get(f"events/{one.id}")
    names = re.findall(r"webhook:[a-z-]+", page.text)
    assert list(dict.fromkeys(names)) == ["webhook:rejects", "webhook:late", "webhook:a-good", "webhook:b-good"]
    assert [given.get("class") for given in page.all("details")][:2] == ["card delivery"] * 2
    assert not [given for given in page.all("details") if given.get("class") == "card delivery" and "open" in given]
    assert "✕1 dead …1 pending ✓2 settled" in local.get("events").text


def test_the_command_of_an_event_does_what_its_button_does(
    local: Browser, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(of: Event) -> list[str]:
        written = re.sub("<wbr>|</?bdi[^>]*>", "", local.get(f"events/{of.id}").response.text)
        [command] = re.findall(r"bucketwire ((?:dead-letter replay|replay|retry now) [^<]+)<", html.unescape(written))
        return shlex.split(command)

    monkeypatch.setenv("BUCKETWIRE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("BUCKETWIRE_DATABASE_URL", database.url.render_as_string(hide_password=False))
    target = add_target(database, "audit")
    refused, good = event("in/a"), event("good")
    Log(database).append([[refused, event("in/a.jpg"), good, event("good.jpg")]])
    run(database, target, lambda given: DELIVERED if given.key.startswith("good") else Rejected("403 forbidden"))
    again = CliRunner().invoke(bucketwire, shown(refused))
    assert again.output == "1 dead letter queued for delivery again\n"
    assert "in/a.jpg" in local.get("dead-letters").text
    assert {"--since", "--before", "--prefix"} <= set(shown(good))
    begun = CliRunner().invoke(bucketwire, [*shown(good), "--json"])
    assert (begun.exit_code, orjson.loads(begun.output)["prefix"]) == (0, "good")


def test_a_replay_of_dead_letters_is_previewed(local: Browser, database: Database) -> None:
    target = add_target(database, "audit")
    Log(database).append([[event(f"k{number}") for number in range(30)]])
    run(database, target, lambda given: Rejected("400 bad" if given.key < "k2" else "403 forbidden"))
    boxes = local.get("dead-letters").values("ids")
    some = local.post("dead-letters/preview", "dead-letters", scope="selected", ids=boxes[:3])
    assert (some.status, "3 dead letters to replay" in some.text, some.values("ids")) == (200, True, boxes[:3])
    assert "bucketwire dead-letter replay" in some.text
    matching = local.post("dead-letters/preview", "dead-letters", scope="matching", reason="403 forbidden")
    assert "18 dead letters to replay" in matching.text
    assert (matching.values("scope"), matching.values("reason")) == (["matching"], ["403 forbidden"])
    everything = local.post("dead-letters/preview", "dead-letters", scope="matching")
    for fact in (
        "30 dead letters",
        "18 webhook:audit 403 forbidden",
        "12 webhook:audit 400 bad",
        "The first 20 of them",
    ):
        assert fact in everything.text, fact
    assert len(local.get("dead-letters").values("ids")) == 30, "a preview changes nothing"
    assert local.post("dead-letters/preview", "dead-letters").status == 303
    local.post("dead-letters/replay", form=some.form, scope="selected", ids=some.values("ids"))
    assert len(local.get("dead-letters").values("ids")) == 27


@pytest.mark.parametrize("path", ["events", "dead-letters", "targets/webhook/audit"])
def test_a_time_is_chosen_by_one_control_and_links_keep_it(busy: Browser, path: str) -> None:
    chosen = busy.get(f"{path}?since=1h" + ("" if "targets/" in path else "&bucket=images"))
    ranges = [given for given in chosen.all("a") if given.get("aria-current") == "true" and "since" in given["href"]]
    assert "since=1h" in ranges[0]["href"]
    assert set(chosen.values("since")) == {"1h"}
    assert chosen.values("before")[0] == ""
    links = [given["href"] for given in chosen.all("a") if re.search("export|reason=|state=", given["href"])]
    assert links
    for link in links:
        query = parse_qs(urlsplit(link).query)
        assert query.get("since") == ["1h"] or ("targets/" in path and "export" not in link), link
    wrong = busy.get(f"{path}?since=soon")
    assert (wrong.status, wrong.values("since")) == (400, ["soon"])
    assert "is not a time" in wrong.text
    assert busy.get(f"{path}?since=2026-11-21T00:00:00Z&before=2026-11-22T00:00:00Z").status == 200


def test_what_a_page_lists_can_be_exported(busy: Browser, database: Database) -> None:
    Log(database).append([[event('=cmd|"/c"!A1,\n;=1+1;"-2;a-b', bucket="images")]])
    for what, member, count in (("events", "events", 5), ("dead-letters", "dead_letters", 1)):
        found = busy.get(f"export/{what}.json?bucket=images").response
        assert found.headers["Content-Disposition"].startswith(f'attachment; filename="bucketwire-{what}-20')
        rows = found.get_json()
        assert (len(rows[member]), rows["next"]) == (count, None)
        assert "record" not in rows[member][0]
        table = list(csv.DictReader(busy.get(f"export/{what}.csv?bucket=images").text_lines))
        assert [row["id"] for row in table] == [str(row["id"]) for row in rows[member]]
    odd, *others = csv.DictReader(busy.get("export/events.csv?bucket=images").text_lines)
    # Also where the separator is a semicolon.
    assert odd["key"] == "'=cmd|\"/c\"!A1,\n;'=1+1;\"'-2;a-b"
    assert "webhook:audit dead" in [row["delivery_states"].partition(";")[0] for row in others]
    assert "400 <script>alert(1)</script>" in busy.get("export/dead-letters.csv").text_lines[1]
    assert busy.get("export/targets/webhook/audit.csv?since=1h").status == 200
    for path in ("events.xml", "tokens.csv", "targets/webhook/none.csv", "events.csv?since=soon"):
        assert busy.get(f"export/{path}").status in (400, 404), path


HARMLESS = ["a=b", "a-b", "in/=b", "x;y", "\u65e5", "7", "a\ufeff=b"]
FORMULAS = [
    f"{before}{sign}1+1"
    for sign in "=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u2212"
    for before in ("", "\ufeff", " ", "\u200b\u00a0", '"', "\x01")
] + ["\tx", "\rx", "\nx", "\ufeffx"]


def test_no_text_of_a_csv_file_is_taken_for_a_formula(local: Browser, database: Database) -> None:
    after = [f"a{separator}\ufeff\uff1d2" for separator in ";\t\r\n"]
    Log(database).append([[event(key, bucket="images") for key in [*HARMLESS, *FORMULAS, *after]]])
    text = local.get("export/events.csv").response.get_data(as_text=True)
    cells = {row["key"] for row in csv.DictReader(io.StringIO(text, newline=""))}
    assert cells >= set(HARMLESS)
    for key in FORMULAS:
        assert {f"'{key}", key.replace('"', "\"'", 1)} & (cells - {key}), ascii(key)
    assert {f"{key[:2]}'{key[2:]}" for key in after} <= cells


def test_no_reason_of_a_dead_letter_is_taken_for_a_formula(local: Browser, database: Database) -> None:
    target = add_target(database, "audit", bucket="images")
    reasons = dict(zip((f"{number}.txt" for number in range(99)), FORMULAS, strict=False))
    Log(database).append([[event(key, bucket="images") for key in reasons]])
    Courier(database, target, ScriptedTarget(lambda given: Rejected(reasons[given.key]))).run()
    text = local.get("export/dead-letters.csv").response.get_data(as_text=True)
    cells = [cell for row in csv.DictReader(io.StringIO(text, newline="")) for cell in (row["reason"], row["history"])]
    assert len(cells) == 2 * len(reasons)
    assert not [cell for cell in cells if unicodedata.normalize("NFKC", cell.strip("\ufeff \t\r\n"))[:1] in "=+-@"]


@pytest.mark.parametrize(("limit", "most", "rows"), [("MAX_ROWS", 3, 3), ("MAX_BYTES", 100, 2)])
def test_an_export_that_is_not_whole_says_so(
    local: Browser, database: Database, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, rows: int
) -> None:
    add_target(database, "audit")
    Log(database).append([[event(f"k{number}") for number in range(5)]])
    monkeypatch.setattr(f"app.console.views.exports.{limit}", most)
    monkeypatch.setattr("app.console.views.exports._PAGE", 2)
    found = local.get("export/events.json").response
    assert ("-incomplete.json" in found.headers["Content-Disposition"], len(found.get_json()["events"])) == (True, rows)
    assert found.get_json()["next"]


def test_dead_letters_are_purged_only_after_the_word_was_typed(local: Browser, database: Database) -> None:
    target = add_target(database, "audit")
    Log(database).append([[event(f"k{number}") for number in range(3)]])
    run(database, target, lambda _: Rejected("400 bad"))
    boxes = local.get("dead-letters").values("ids")
    asked = local.post("dead-letters/purge", "dead-letters", scope="selected", ids=boxes[:2])
    assert (asked.status, "Purge 2 dead letters?" in asked.text) == (200, True)
    assert asked.values("ids") == boxes[:2]
    wrong = local.post(
        "dead-letters/purge", "dead-letters", scope="selected", ids=boxes[:2], confirmed="1", typed="yes"
    )
    assert wrong.status == 400
    assert len(local.get("dead-letters").values("ids")) == 3
    local.post("dead-letters/purge", "dead-letters", scope="selected", ids=boxes[:2], confirmed="1", typed="purge")
    assert local.get("dead-letters").values("ids") == boxes[2:]
    assert "purged 2" in re.sub(r"[=+]", "", local.get("targets/webhook/audit").text)


def test_a_long_list_has_pages(local: Browser, database: Database) -> None:
    target = add_target(database, "audit")
    Log(database).append([[event(f"k{number:03}") for number in range(130)]])
    events = local.get("events")
    [older] = [given["href"] for given in events.all("a") if "after=" in given["href"]]
    assert len(local.get(older.removeprefix("./")).all("tr")) == 51
    run(database, target, lambda _: Rejected("400 bad"))
    page = local.get("dead-letters")
    assert len(page.values("ids")) == 100
    [following] = [given["href"] for given in page.all("a") if "after=" in given["href"]]
    assert len(local.get(following.removeprefix("./")).values("ids")) == 30


def test_retries_are_tried_now_and_given_up(busy: Browser) -> None:
    [box] = busy.get("retries").values("ids")
    [button] = [given["value"] for given in busy.get("retries").all("button") if given.get("name") == "only"]
    assert button == box
    busy.post("retries/now", "retries", scope="matching", bucket="none", only=button)  # the row's own button
    page = busy.get("retries")
    assert page.values("ids") == [box]
    assert re.search(r"500 broken webhook:audit\S* now1 attempt so far", page.text)
    busy.post("retries/give-up", "retries", scope="matching", target="webhook:audit")
    assert len(busy.get("dead-letters").values("ids")) == 2


# --- forms of targets


def test_a_target_is_added_and_edited_by_its_declaration(local: Browser, database: Database) -> None:
    page = local.post(
        "targets/new", "targets/new?type=webhook", type="webhook", target_name="hook", **{"s.endpoint": "x"}
    )
    assert page.status == 400
    assert "endpoint" in page.text
    typed = {"s.endpoint": "x", "s.auth_token": "hunter2 secret"}
    page = local.post("targets/new", "targets/new?type=webhook", type="webhook", target_name="hook", **typed)
    assert (page.status, "hunter2" in page.response.get_data(as_text=True)) == (400, False)
    settings = {"s.endpoint": "http://127.0.0.1:9/a", "s.auth_token": "hunter2 secret", "s.max_attempts": "7"}
    page = local.post("targets/new", "targets/new?type=webhook", type="webhook", target_name="hook", **settings)
    assert page.status == 303, page.text
    again = local.post("targets/new", "targets/new?type=webhook", type="webhook", target_name="hook", **settings)
    assert "already" in again.text
    edit = local.get("targets/webhook/hook/edit")
    assert "hunter2" not in edit.response.get_data(as_text=True)
    assert edit.values("s.max_attempts") == ["7"]
    assert edit.values("s.auth_token") == [""]
    local.post("targets/webhook/hook/edit", **{"s.endpoint": "http://127.0.0.1:9/b"})
    [stored] = registry(database).targets()
    texts = local.app.extensions["bucketwire"].registry.texts(stored)
    assert texts == {"endpoint": "http://127.0.0.1:9/b", "auth_token": "hunter2 secret"}
    local.post("targets/webhook/hook/edit", **{"s.endpoint": "http://127.0.0.1:9/b", "clear.auth_token": "1"})
    [stored] = registry(database).targets()
    assert local.app.extensions["bucketwire"].registry.texts(stored) == {"endpoint": "http://127.0.0.1:9/b"}
    bad = local.post("targets/webhook/hook/edit", **{"s.endpoint": "http://127.0.0.1:9/b", "s.timeout": "soon"})
    assert (bad.status, "is not a duration" in bad.text, bad.values("s.timeout")) == (400, True, ["soon"])


def test_a_target_is_tested_before_it_is_saved(
    local: Browser, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[dict[str, str]] = []

    def run(_target: TargetId, settings: dict[str, str], **_: object) -> list[dict[str, object]]:
        tried.append(dict(settings))
        return [{"step": "login", "ok": len(tried) > 1, "seconds": 0.1, "message": "<b>not</b> you"}]

    monkeypatch.setattr("app.api.routes.targets.run_settings_test", run)
    new, settings = "targets/new?type=webhook", {"s.endpoint": "http://127.0.0.1:9/a", "s.auth_token": "hunter2x"}
    form = {"type": "webhook", "target_name": "hook", **settings}
    page = local.post("targets/new", new, test="1", **form)
    assert (page.status, registry(database).targets()) == (200, [])
    assert "The target did not accept the test event" in page.text
    assert "<b>not</b> you" in page.text
    assert "Type the secrets again" in page.text
    assert (page.values("target_name"), page.values("s.endpoint")) == (["hook"], ["http://127.0.0.1:9/a"])
    assert "hunter2x" not in page.response.get_data(as_text=True)
    wrong = local.post("targets/new", new, test="1", **(form | {"s.timeout": "soon"}))
    assert (wrong.status, "timeout is not a duration" in wrong.text) == (200, True)
    assert local.post("targets/new", new, **form).status == 303
    page = local.post("targets/webhook/hook/edit", test="1", **{"s.endpoint": "http://127.0.0.1:9/b"})
    assert "The target accepted the test event" in page.text
    assert "Type the secrets again" not in page.text
    assert tried[-1] == {"endpoint": "http://127.0.0.1:9/b", "auth_token": "hunter2x"}
    [stored] = registry(database).targets()
    assert local.app.extensions["bucketwire"].registry.texts(stored)["endpoint"] == "http://127.0.0.1:9/a"


def test_the_types_of_targets_name_the_servers_that_people_look_for(local: Browser) -> None:
    page = local.get("targets/new")
    for server in ("AMQP, RabbitMQ", "MySQL, MariaDB", "Elasticsearch, OpenSearch"):
        assert server in page.text


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_has_a_form_with_a_help_for_each_setting(local: Browser, kind: str) -> None:
    page = local.get(f"targets/new?type={kind}")
    described = [
        given["aria-describedby"]
        for tag, given in page.tags
        if tag in ("input", "select") and given.get("name", "").startswith("s.")
    ]
    helps = {given["id"] for given in page.all("p") if "id" in given}
    assert len(described) > 10
    assert set(described) <= helps


def test_a_target_is_removed_only_after_its_name_was_typed(local: Browser, database: Database) -> None:
    add_target(database, "audit")
    assert local.post("targets/webhook/audit/remove", typed="webhook:other").status == 400
    assert len(registry(database).targets()) == 1
    assert local.post("targets/webhook/audit/remove", typed="webhook:audit").status == 303
    assert registry(database).targets() == []


# --- tokens, and what is slow or away


def test_a_token_is_shown_once_and_revoked_by_its_name(browse: Opened, database: Database) -> None:
    admin = browse(api_tokens=TOKENS)
    admin.sign_in(ADMIN)
    page = admin.post("tokens", name="robot", scopes=["read", "ingest"])
    [token] = re.findall(r"bw_[\w-]{43}", page.text)
    assert token not in admin.get("tokens").text
    assert {frozenset(each.scopes) for each in Tokens(database).list()} == {frozenset({"read", "ingest"})}
    assert admin.post("tokens", name="no good", scopes="read").status == 400
    assert admin.post("tokens", name="none").status == 400
    assert admin.post("tokens/robot/revoke", typed="robo").status == 400
    assert admin.post("tokens/robot/revoke", typed="robot").status == 303
    assert Tokens(database).list() == []


def test_a_token_says_which_frontend_sends_with_it(browse: Opened, database: Database) -> None:
    admin = browse(api_tokens=TOKENS)
    admin.sign_in(ADMIN)
    page = admin.post("tokens", name="gate", scopes="ingest", frontend="versity")
    assert "bucketwire token create gate --scope ingest --frontend versity" in page.text
    assert [(stored.name, stored.frontend) for stored in Tokens(database).list()] == [("gate", "versity")]
    assert "of versity" in admin.get("tokens").text
    assert admin.post("tokens", name="other", scopes="ingest", frontend="nobody").status == 400
    page = admin.post("tokens", name="acme", scopes="ingest", tenant="acme")
    assert "bucketwire token create acme --scope ingest --tenant acme" in page.text
    assert "tenant acme" in admin.get("tokens").text
    refused = admin.post("tokens", name="bad", scopes="ingest", tenant="a b")
    assert (refused.status, "cannot be a tenant" in refused.text) == (400, True)


def test_a_token_shows_its_last_use_and_when_it_expires(browse: Opened, database: Database) -> None:
    token = Tokens(database).create("ops", ["admin"])
    browser = browse()
    assert browser.sign_in(token).status == 303
    made = browser.post("tokens", name="probe", scopes=["read"], expires="90d")
    assert "bucketwire token create probe --scope read --expires 90d" in made.text
    until(lambda: " ago " in browser.get("tokens").text)
    assert re.search(r"probe .*read stored .* never 20\d\d-", browser.get("tokens").text)
    with database.writing() as connection:
        probe = tables.tokens.update().where(tables.tokens.c.name == "probe")
        connection.execute(probe.values(limits='{"expires_at": 1}'))
    assert re.search(r"probe .*read stored .* never 1970-01-01 00:00:00 UTC expired", browser.get("tokens").text)
    wrong = browser.post("tokens", name="other", scopes=["read"], expires="yesterday")
    assert (wrong.status, "is not a time in the future" in wrong.text) == (400, True)


def test_a_token_is_limited_by_its_form(browse: Opened, database: Database) -> None:
    admin = browse(api_tokens=TOKENS)
    admin.sign_in(ADMIN)
    page = admin.post("tokens", name="team", scopes="read", buckets="images, docs", targets="webhook:audit")
    assert "create team --scope read --bucket images --bucket docs --target webhook:audit" in page.text
    [stored] = Tokens(database).list()
    assert (stored.buckets, stored.targets) == (("docs", "images"), ("webhook:audit",))
    wrong = admin.post("tokens", name="other", scopes="read", targets="nonsense")
    assert (wrong.status, wrong.values("targets")) == (400, ["nonsense"])


def test_the_first_token_ends_the_time_without_sign_in(local: Browser, database: Database) -> None:
    page = local.post("tokens", name="first", scopes="admin")
    assert page.status == 200, page.text
    [token] = re.findall(r"bw_[\w-]{43}", page.text)
    until(lambda: local.get("").status == 303)
    local.sign_in(token)
    assert local.get("tokens").status == 200


def test_without_a_database_there_is_a_page_that_says_so(local: Browser, database: Database) -> None:
    local.get("")
    with database.writing() as connection:
        connection.exec_driver_sql("drop table log_head")
        connection.exec_driver_sql("drop table targets")
    page = local.get("")
    assert page.status == 503
    assert "The outbox database is unavailable" in page.text
    assert "outcome of the request" not in page.text


def test_a_replay_is_previewed_begun_and_cancelled(busy: Browser) -> None:
    preview = busy.get("replays?step=preview&target=webhook:audit&bucket=docs")
    assert "1 event that was sent to webhook:audit matches" in preview.text
    assert busy.post("replays", form=preview.form, target="webhook:audit", bucket="docs").status == 303
    assert busy.post("replays", form=preview.form, target="webhook:audit").status == 400  # everything needs `all`
    page = busy.get("replays")
    [cancel] = [given["action"] for given in page.all("form") if given["action"].endswith("/cancel")]
    busy.post(cancel.removeprefix("./"), "replays")
    assert "cancelled" in busy.get("replays").text


def test_the_record_of_an_event_is_whole(busy: Browser, database: Database) -> None:
    page = busy.get(f"events/{_event_id(database, 'late')}")
    [text] = re.findall(r"<pre[^>]*>(.*?)</pre>", page.response.get_data(as_text=True), re.DOTALL)
    import html

    assert orjson.loads(html.unescape(text))["s3"]["object"]["key"] == "late"


def test_a_clean_run_says_what_it_could_not_judge(local: Browser, database: Database) -> None:
    _with_mirror(local, database)
    runs = Reconciliations(database)
    run = runs.begin(TargetId("redis", "mirror"), "images", lease=60_000)
    runs.end(run, "clean", {"objects": 9, "target_rows": 9, "in_flight": 1})
    for path in ("reconciliations", f"reconciliations/{run}"):
        assert re.search(r"took [0-9.]+ m?s, ended", local.get(path).text)
    assert "No drift; 1 key with events in flight is left to the next run." in local.get(f"reconciliations/{run}").text
    assert "1 in flight, left to the next run" in local.get("reconciliations").text
    run = runs.begin(TargetId("redis", "mirror"), "images", lease=60_000)
    runs.end(run, "clean", {"objects": 9, "target_rows": 9})
    text = local.get(f"reconciliations/{run}").text
    assert ("No drift." in text, "in flight is left" in text) == (True, False)


def test_a_reconciliation_is_started_shown_repaired_and_cancelled(local: Browser, database: Database) -> None:
    if "Compare a bucket" not in _with_mirror(local, database).text:
        pytest.skip("this version of the API lists reconciliations, and starts none")
    wrong = local.post("reconciliations", target="redis:mirror", bucket="no/bucket")
    assert wrong.status == 400
    unseen = local.post("reconciliations", target="redis:mirror", bucket="imges")
    assert (unseen.status, "compare this bucket all the same" in unseen.text) == (400, True)
    assert unseen.values("unknown_bucket") == ["1"]
    page = local.post("reconciliations", target="redis:mirror", bucket="images", unknown_bucket="1")
    assert page.status == 303, page.text
    listed = local.get("reconciliations")
    [run] = {given["href"] for given in listed.all("a") if "/reconciliations/" in given["href"]}
    path = run.removeprefix("./")
    shown = local.get(path)
    assert "It waits: no Spark worker is there" in shown.text
    assert ("Nothing is compared yet" in shown.text, "No difference" in shown.text) == (True, False)
    assert (" none " in listed.text, "–" in listed.text) == (False, True), "nothing is known of the drift"
    record_process(database, Process("here:1:x", "spark@here", VERSION, "thread", ["spark"]))
    assert "It waits for its turn at a Spark worker" in local.get(path).text
    assert local.post(f"{path}/repair", path).status == 303  # refused with a sentence: there is nothing to repair yet
    assert local.post(f"{path}/cancel", path).status == 303
    assert "cancelled" in local.get(path).text
    for kind in ("missing", "stale", "orphaned", "malformed", "nonsense"):
        assert local.get(f"{path}?kind={kind}").status == 200
    assert local.get("reconciliations/none").status == 404


def test_clean_never_stands_beside_a_failed_run(local: Browser, database: Database) -> None:
    _with_mirror(local, database)
    mirror, runs = TargetId("redis", "mirror"), Reconciliations(database)
    runs.end(runs.begin(mirror, "images", lease=60_000), "clean", {})
    assert re.search(r"images → redis:mirror \S*clean", local.get("reconciliations").text)
    runs.end(runs.begin(mirror, "images", lease=60_000), "failed", {}, problem="MySQL is away")
    text = local.get("reconciliations").text
    assert re.search(r"images → redis:mirror \S*failed [^→]*older than the run that failed", text), text
    assert "MySQL is away" in local.get("").text, "a line of the overview"
    run = runs.begin(mirror, "images", lease=60_000, state=BACKFILLING)
    assert "Backfill of images" in local.get(f"reconciliations/{run}").text


def test_the_drift_of_a_mirror_over_time_and_its_commands(local: Browser, database: Database) -> None:
    assert "Drift over time" not in _with_mirror(local, database).text
    target, runs = TargetId("redis", "mirror"), Reconciliations(database)
    for state, counts in (("clean", {}), ("drift", {"missing": 3, "stale": 2}), ("drift", {"missing": 7})):
        run = runs.begin(target, "images", lease=60_000)
        runs.end(run, state, counts)
    page = local.get("reconciliations")
    assert re.search(r"images → redis:mirror ≠?drift 5 7", page.text), page.text
    labels = [given.get("aria-label") for given in page.all("svg")]
    assert "Differences: 0, 5, 7" in labels
    assert "bucketwire reconcile start redis:mirror BUCKET" in page.text
    assert (run in page.text, f"reconcile · {run[:8]}" in page.text) == (False, True)
    shown = local.get(f"reconciliations/{run}")
    assert f"bucketwire reconcile repair {run}" in shown.text
    assert f"bucketwire reconcile findings {run}" in shown.text


def test_short_run_ids_stand_for_the_whole_ones_wherever_runs_are_shown(local: Browser, database: Database) -> None:
    _with_mirror(local, database)
    runs = Reconciliations(database)
    run = runs.begin(TargetId("redis", "mirror"), "images", lease=60_000)
    runs.end(run, "failed", {}, problem="MySQL is away")
    for path in ("", "reconciliations", f"reconciliations/{run}", "targets/redis/mirror"):
        page = local.get(path)
        assert page.status == 200, path
        text = re.sub(r"bucketwire reconcile \S+ \S+", "", page.text)  # what is to be pasted has all of it
        assert run not in text, path
    for path in ("reconciliations", f"reconciliations/{run}"):
        page = local.get(path)
        assert run[:8] in page.text
        assert run in page.response.get_data(as_text=True), "on hovering, and in links"


def test_a_running_reconciliation_shows_how_far_it_is(local: Browser, database: Database) -> None:
    _with_mirror(local, database)
    runs = Reconciliations(database)
    run = runs.begin(TargetId("redis", "mirror"), "images", lease=60_000)
    assert local.get(f"reconciliations/{run}").status == 200
    for keys, remaining, text in ((0, None, "Listing."), (12_345, 40, "Listing: 12,345 keys read, 300 per second")):
        assert runs.renew(run, lease=60_000, progress=Progress("listing", keys, 300, remaining))
        page = local.get(f"reconciliations/{run}")
        assert (page.status, text in page.text) == (200, True), page.text
    assert "about 40 s left" in page.text


def test_the_workers_page_shows_who_is_there_and_does_what(busy: Browser, database: Database) -> None:
    assert "No process is there" in busy.get("processes").text
    paused = registry(database).target(TargetId("webhook", "paused"))
    Leases(database, 600_000).claim(paused.row_id, [0, 1, 2, 3], new_token(), now_ms())
    with database.writing() as connection:
        transitions.revoke_leases(connection, paused.row_id, [3])  # so nobody delivers it
    host, _, pid = new_token().rpartition(":")[0].rpartition(":")
    page = busy.get("processes")
    assert "1 more process has partitions leased without a heartbeat of its worker" in page.text
    assert f"{host} {pid} webhook:paused 3 partitions" in page.text
    [process] = busy.client.get("/v1/processes").get_json()["other_processes"]
    assert process == {
        "host": host, "pid": int(pid), "leased_partitions": 3, "targets": ["arn:minio:sqs::paused:webhook"],
    }  # fmt: skip
    delivers = Process(f"{host}:7:f", "targets@here", VERSION, "prefork", ["targets"], processes=[int(pid), 9])
    reconciles = Process("there:1:f", "<b>@there", "0.0.1", "thread", ["spark"], jobs=["reconcile redis:x images"])
    for worker in (
        delivers,
        reconciles,
        replace(reconciles, id="there:2:f", name="gone@there", version=VERSION, serves=["drain"]),
    ):
        record_process(database, worker)
    with database.writing() as connection:
        minute_ago = tables.workers.update().where(tables.workers.c.name == "gone@there")
        connection.execute(minute_ago.values(at=now_ms() - HEARTBEATS.silence_ms - 1_000))
    page = busy.get("processes")
    assert "without a heartbeat of its worker" not in page.text
    rows = re.findall(r"<tr>(.*?)</tr>", page.response.text, re.DOTALL)
    texts = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in rows]
    texts = [text for text in texts if " thread " in text or " prefork " in text]
    assert [text.split()[0] for text in texts] == ["gone@there", "&lt;b&gt;@there", "targets@here"], "the wrong first"
    assert "✕ silent" in texts[0]
    assert "A silent process was killed, hangs, or has no connection to the database." in page.text
    assert re.search(
        "there process 1, started .* ✓ running .* reconcile redis:x images spark thread 0.0.1 other version", texts[1]
    )
    assert re.search(
        rf"here process 7, started .* ✓ running .*:paused 3 partitions targets prefork of 2 {VERSION}", texts[2]
    )


def test_the_workers_page_says_first_what_a_broker_that_is_away_means(busy: Browser) -> None:
    page = busy.get("processes")
    [finding] = [part for part in re.findall(r"<li class.*?</li>", page.response.text, re.DOTALL) if ">broker<" in part]
    assert finding.index("events are accepted, but not delivered; nothing is lost") < finding.index("cannot be used")
    assert "Broker ✕problem" in page.text


def test_discarded_events_are_listed_and_acknowledged_as_many_as_the_page_has_shown(
    local: Browser, database: Database
) -> None:
    add_target(database, "full", queue_limit=1)
    Log(database).append([[event("kept"), event("lost"), event("gone")]])
    page = local.get("targets/webhook/full")
    [link] = [given["href"] for given in page.all("a") if given.get("id") == "c-discarded"]
    listed = local.get(urlsplit(link).path.rpartition("/")[2], dict(parse_qsl(urlsplit(link).query)))
    assert ("lost" in listed.text, "gone" in listed.text, "kept" in listed.text) == (True, True, False)
    Log(database).append([[event("later")]])
    done = local.post("targets/webhook/full/acknowledge", "targets/webhook/full", discarded="2")
    assert (done.status, "notice=" in done.location) == (303, True), done.location
    assert local.client.get("/v1/targets/webhook/full").get_json()["acknowledged_discards"] == 2
    until(lambda: "1 event discarded, the last" in local.get("").text)


def test_the_page_to_sign_in_proposes_a_token_that_may_only_read(browse: Opened) -> None:
    assert "bucketwire token create console --scope read" in browse(api_tokens=TOKENS).get("sign-in").text


def test_the_workers_page_counts_no_events_for_the_version(busy: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, get = list[str](), session.get

    def noted(path: str, **query: object) -> dict[str, object]:
        asked.append(path)
        return get(path, **query)

    monkeypatch.setattr(session, "get", noted)
    assert busy.get("processes").status == 200
    assert asked.count("/v1/status") <= 1, "for the navigation, which keeps what it has counted"


def test_the_navigation_counts_what_needs_somebody_and_has_the_targets(busy: Browser, local: Browser) -> None:
    page = busy.get("rules")
    assert "Dead letters1" in page.text
    assert "Retries2" in page.text
    # They move with the live parts of an open page, and are counted again after an action.
    [body] = page.all("body")
    live = busy.get("processes", HX_Request="true")
    counted = [given["id"] for given in live.all("span") if given.get("class") == "count"]
    assert body["hx-select-oob"] == ",".join(f"#{each}" for each in counted) == "#count-dead-letters,#count-retries"
    replayed = busy.post("dead-letters/replay", "dead-letters", scope="matching")
    after = busy.get(f"dead-letters?{urlsplit(replayed.location).query}")
    assert "Retries3" in after.text
    assert [given["id"] for given in after.all("span") if "hidden" in given and "id" in given] == ["count-dead-letters"]
    listed = busy.get("targets")
    assert [given["href"] for given in listed.all("a") if given.get("id") == "t-webhook-audit"]
    [here] = [given["href"] for given in listed.all("a") if given.get("aria-current") == "page"]
    assert here.endswith("/targets")


def test_flower_is_linked_where_its_address_is_known(browse: Opened) -> None:
    linked = browse(flower_url="https://flower.example.com/x/").get("processes")
    assert [each["href"] for each in linked.all("a") if "flower" in each["href"]] == ["https://flower.example.com/x/"]
    with pytest.raises(BadSettings, match="has a user or a password"):
        browse(flower_url="https://me:hunter2@flower.example.com/")
    without = browse().get("processes")
    assert ("BUCKETWIRE_FLOWER_URL" in without.text, "bucketwire flower" in without.text) == (True, True)


def _with_mirror(browser: Browser, database: Database) -> Page:
    values = {"address": "127.0.0.1:9", "key": "mirror", "format": "namespace"}
    add_target(database, "mirror", type_name="redis", values=values, bucket="images")
    return browser.get("reconciliations")


def test_a_target_with_a_password_in_its_url_is_shown_and_saved_as_it_is(local: Browser, database: Database) -> None:
    settings = {"s.endpoint": "http://me:hunter2@127.0.0.1:9/a"}
    made = local.post("targets/new", "targets/new?type=webhook", type="webhook", target_name="hook", **settings)
    assert made.status == 303, made.text
    edit = local.get("targets/webhook/hook/edit")
    shown = edit.values("s.endpoint")
    assert ("127.0.0.1:9/" in shown[0], "hunter2" in shown[0], "enc:" in shown[0]) == (True, False, False)
    assert local.post("targets/webhook/hook/edit", **{"s.endpoint": shown[0]}).status == 303
    [stored] = registry(database).targets()
    assert local.app.extensions["bucketwire"].registry.texts(stored) == {"endpoint": "http://me:hunter2@127.0.0.1:9/a"}


def test_odd_numbers_and_ids_are_not_found(busy: Browser) -> None:
    assert busy.get("events?id=stream").status == 404
    assert busy.get("replays?after=%C2%B2").status == 200
    assert busy.post("dead-letters/replay", "dead-letters", ids="1" * 30).status < 500
