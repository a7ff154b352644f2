"""The pages of sources: what is pulled, what fails, and the messages that were rejected."""

from __future__ import annotations

import re

import pytest

from app.config.arn import SourceId
from app.outbox import tables
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.series import FINE, REQUESTS
from tests.integration.console.conftest import Browser
from tests.support.builders import add_target, event, registry
from tests.support.pulled_events import recorded, reject
from tests.support.watched_bucket import Known

HERE = "sources/kafka/minio"
PAGES = (
    "sources",
    HERE,
    f"{HERE}/edit",
    f"{HERE}/remove",
    f"{HERE}/rejected/1",
    "sources/new",
    "sources/new?type=kafka",
)
HOSTILE = b"{<script>alert(1)</script>\r\n\xe2\x80\xae"


@pytest.fixture
def pulled(local: Browser, database: Database) -> Browser:
    """A console over a source with two rejected messages, of which one is not text."""
    registry(database).sources.put(SourceId("kafka", "minio"), {"brokers": "kafka", "topic": "events"})
    reject(database, HOSTILE, b"\xff\x00")
    add_target(database)
    return local


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_and_a_message_is_text_on_it(pulled: Browser, path: str) -> None:
    page = pulled.get(path)
    assert page.status == 200, page.text
    assert len(page.all("h1")) == 1
    assert all(given.get("src") for given in page.all("script"))
    assert [given["href"] for given in page.all("a") if given.get("aria-current")] == [
        given["href"] for given in page.all("a") if given["href"].endswith("sources")
    ][:1]
    for link in {given["href"] for given in page.all("a") if "sources/" in given["href"]}:
        assert pulled.get(link.lstrip("./")).status == 200, link


def test_the_list_and_the_page_say_what_is_wrong_and_what_to_do(pulled: Browser) -> None:
    listed = pulled.get("sources").text
    assert "kafka:minio" in listed
    assert "waiting" in listed
    assert "bucketwire worker --only sources" in listed
    page = pulled.get(HERE)
    assert "No worker pulls from it" in page.text
    assert "Rejected, kept 2" in page.text
    assert {given["value"] for given in page.all("input") if given.get("name") == "ids"} == {"1", "2"}
    assert any(given["href"].endswith(HERE) for given in pulled.get("").all("a")), "the overview leads to it"


def test_the_page_of_a_watched_bucket_has_its_listings_and_no_queue(local: Browser, database: Database) -> None:
    known = Known(database)
    known.finish(known.clock(), objects=1_234, known=9, explained=2, pending=4)
    page = local.get("sources/bucket/x").text
    assert "lists it" in page
    assert "In the bucket 1,234" in page
    assert "Explained by events 2" in page
    assert "queue" not in page.lower()
    assert "bucket:x" in local.get("sources").text
    form = local.get("sources/new?type=bucket")
    fields = {given.get("name", "") for given in (*form.all("input"), *form.all("select"))}
    assert {"s.endpoint", "s.every", "s.grace", "s.initial"} <= fields


def test_the_overview_has_the_rate_of_each_source_and_of_requests(pulled: Browser, database: Database) -> None:
    Log(database).append([[event("a")._replace(origin="request x minio")]])
    with database.writing() as connection:
        connection.execute(tables.sources.update().values(recorded=1234))
    page = pulled.get("")
    assert "requests to the API – 1 kafka:minio – 1,234" in page.text, "there is no rate before there are samples"


def test_what_comes_in_is_counted_once_however_many_targets_get_it(pulled: Browser, database: Database) -> None:
    add_target(database, "second")
    targets = [stored.row_id for stored in registry(database).targets()]
    Log(database).append([[event("a")._replace(origin="request x minio")]])
    begin = FINE.begin(now_ms()) - FINE.step * 1000
    rows = [
        {**dict.fromkeys(("delivered", "superseded", "failed", "dead_lettered", "discarded", "backlog"), 0)}
        | {"target_id": target, "recorded": 300 * index, "step": FINE.step, "oldest_age": 0, "times": ""}
        | {"at": (at := begin - (1 - index) * FINE.step * 1000), "slot": FINE.slot(at)}
        for target in (REQUESTS, *targets)
        for index in (0, 1)
    ]
    with database.writing() as connection:
        connection.execute(tables.series.insert(), rows)
    text = pulled.get("").text
    assert "Coming in 30.0events/s, last 20 s" in text
    assert "Backlog, all targets 22 pending, 0 parked" in text, "each event at each of two targets"


def test_every_rate_and_quantile_of_now_names_its_window(pulled: Browser) -> None:
    [target] = [given["href"] for given in pulled.get("targets").all("a") if given.get("class") == "target"]
    for path, windows in (
        ("", ["events/s, last 20 s", "deliveries/s, last 20 s", "Delivered/s, last 20 min", "Events/s, last 20 s"]),
        ("targets", ["Delivered/s, last 20 min"]),
        (target.removeprefix("./"), ["events/s, last 10 s"]),
    ):
        text = pulled.get(path).text
        assert re.findall(r"[A-Za-z]+/s(?:, last \d+ \w+)?", text) == windows, path
        assert len(re.findall(r"p99[^p]*?last min", text)) == text.count("p99") > 0, path


def test_a_source_is_added_edited_paused_resumed_and_removed(local: Browser) -> None:
    assert "No source" in local.get("sources").text
    add = {"type": "kafka", "target_name": "minio", "s.brokers": "kafka"}
    wrong = local.post("sources/new", "sources/new?type=kafka", **add)
    assert (wrong.status, "is required" in wrong.text) == (400, True)
    made = local.post("sources/new", "sources/new?type=kafka", **add, **{"s.topic": "events", "s.sasl_password": ""})
    assert made.location.partition("?")[0].endswith(HERE)
    again = local.post("sources/new", "sources/new?type=kafka", **add, **{"s.topic": "events"})
    assert (again.status, "there is a source kafka:minio already" in again.text) == (409, True)
    local.post(f"{HERE}/edit", **{"s.brokers": "kafka", "s.topic": "others"})
    assert "others" in local.get(HERE).text
    local.post(f"{HERE}/pause", HERE)
    assert "paused in the console" in local.get(HERE).text
    local.post(f"{HERE}/resume", HERE)
    assert "paused" not in local.get(HERE).text
    assert local.post(f"{HERE}/remove", typed="kafka:other").status == 400
    assert local.get(HERE).status == 200
    local.post(f"{HERE}/remove", typed="kafka:minio")
    assert local.get(HERE).status == 404


def test_rejected_messages_are_read_tried_again_and_deleted(pulled: Browser, database: Database) -> None:
    reject(database, b"[")
    read = pulled.get(f"{HERE}/rejected/2")
    assert ("is not text; in base64" in read.text, "/wA=" in read.text) == (True, True)
    shown = pulled.get(f"{HERE}/rejected/1")
    assert "{<script>alert(1)</script>\\u000d\\u000a\\u202e" in shown.text
    tried = pulled.post(f"{HERE}/retry", HERE, ids="1")
    assert "Message 1" in pulled.get(tried.location.removeprefix("../../")).text
    assert recorded(database) == []
    assert (
        "Nothing was selected" in pulled.get(pulled.post(f"{HERE}/delete", HERE).location.removeprefix("../../")).text
    )
    pulled.post(f"{HERE}/delete", HERE, ids=["1", "2"])
    assert [given["value"] for given in pulled.get(HERE).all("input") if given.get("name") == "ids"] == ["3"]
