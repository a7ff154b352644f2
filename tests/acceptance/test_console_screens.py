"""A mirror that has drifted is compared, looked at and repaired in the console; and the documentation's screenshots.

MinIO reports what is written to it, a Spark worker compares its bucket with the mirror, and Debian's Chromium is the
person's browser. `make screenshots` keeps the pictures of this file in the documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import uuid4

import orjson
import pytest
from playwright.sync_api import Browser, Page, expect

from tests import provision, services
from tests.services import Answer, until
from tests.spark.conftest import QUICKLY
from tests.support.builders import event
from tests.support.console_browser import PATIENCE, Visit, chromium
from tests.support.pulled_events import reject
from tests.support.service_processes import Role, System, system
from tests.support.target_contents import TABLE, RedisContents

ADMIN = f"admin-{uuid4().hex}"
BUCKET, MIRROR = "photos", "redis:catalog"
SPARK_PATIENCE = 240_000  # ms for a run that goes on; one that has ended is seen at once
ENDED = re.compile("drift|clean|repaired|failed|unfinished|cancelled")
KEYS = [
    f"2026/{month}/{place}/IMG_{number:04}.jpg"
    for month, place in (("07", "lisbon"), ("08", "porto"), ("09", "sintra"))
    for number in range(410, 422)
]
EVENTS = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]

expect.set_options(timeout=PATIENCE)
pytestmark = [
    pytest.mark.nightly("its pages in tests/integration/console, its runs and repairs in tests/spark"),
    pytest.mark.timeout(1200),
]  # two drivers of Spark and a browser, on a busy machine


@dataclass
class Gallery:
    """MinIO's bucket of photos, its mirror in Redis, and targets in every state."""

    whole: System
    minio: services.MinIO
    mirror: RedisContents
    receiver: services.Receiver
    spark: Role

    def objects(self) -> dict[str, tuple[str, int]]:
        """The bucket's objects: path to ETag and size."""
        s3 = self.minio.boto3()
        try:
            listed = s3.list_objects_v2(Bucket=BUCKET)["Contents"]
        finally:
            s3.close()
        return {f"{BUCKET}/{one['Key']}": (one["ETag"].strip('"'), one["Size"]) for one in listed}

    def mirrored(self) -> dict[str, tuple[str, int]]:
        """The mirror's rows, likewise."""
        things = {path: row["Records"][0]["s3"]["object"] for path, row in self.mirror.all().items()}
        return {path: (thing["eTag"], thing["size"]) for path, thing in things.items()}

    def damage(self) -> dict[str, str]:
        """Change rows behind the service's back; the keys of what differs then, and how."""
        rows = self.mirror.all()
        lost, changed = KEYS[3:6], KEYS[20]
        for key in lost:
            self.mirror.set(f"{BUCKET}/{key}", None)
        for row in rows.values():  # older than a listing that begins now: its event is not on its way any more
            row["Records"][0]["eventTime"] = "2026-07-01T00:00:00.000Z"
        row = orjson.loads(orjson.dumps(rows[f"{BUCKET}/{changed}"]))
        row["Records"][0]["s3"]["object"] |= {"eTag": "0" * 32, "size": 4096}
        self.mirror.set(f"{BUCKET}/{changed}", row)
        orphan = orjson.dumps(rows[f"{BUCKET}/{KEYS[0]}"]).replace(b"IMG_0410", b"IMG_0409")
        gone = KEYS[0].replace("IMG_0410", "IMG_0409")
        self.mirror.set(f"{BUCKET}/{gone}", orjson.loads(orphan))
        return dict.fromkeys(lost, "missing") | {changed: "stale", gone: "orphaned"}


@pytest.fixture(scope="module")
def gallery() -> Iterator[Gallery]:
    services.need("spark_jars")
    url = f"sqlite:///{services.new_folder('screens')}/outbox.db"
    options: Any = {"token": ADMIN, "api_tokens": f"ops:admin:{ADMIN}", "concurrency": 1}
    options |= {"spark_master": "local[1]", "spark_jars": provision.SPARK_JARS, "spark_memory": "512m"}
    with ExitStack() as stack:
        broker, store = (stack.enter_context(services.redis()) for _ in range(2))
        receiver = stack.enter_context(services.receiver())
        whole = stack.enter_context(system(url, broker.url, **options))
        minio = stack.enter_context(services.minio(webhooks={"BW": (f"{whole.api.url}/v1/events", ADMIN)}))
        login = {"AWS_ACCESS_KEY_ID": minio.access_key, "AWS_SECRET_ACCESS_KEY": minio.secret_key}
        place = {"AWS_ENDPOINT_URL_S3": minio.url, "SPARK_LOCAL_IP": services.LOOPBACK}
        place |= {"BUCKETWIRE_URL": whole.api.url, "BUCKETWIRE_TOKEN": ADMIN}
        settings = {**whole.settings, **login, **place, **QUICKLY}
        spark = stack.enter_context(Role(["worker", "--only", "spark"], settings, " ready.")).start()
        whole.add_target(MIRROR, BUCKET, EVENTS, address=f"{services.LOOPBACK}:{store.port}", key=TABLE)
        made = Gallery(whole, minio, RedisContents(store), receiver, spark)
        fill(made)
        populate(made)
        yield made


def fill(gallery: Gallery) -> None:
    """Photos whose events reach the mirror; they are too old for a comparison to wait for their events."""
    s3 = gallery.minio.boto3()
    s3.meta.events.register("before-sign.s3.PutObject", _an_hour_ago)
    s3.create_bucket(Bucket=BUCKET)
    configured = [{"QueueArn": gallery.minio.arn("BW"), "Events": EVENTS}]
    s3.put_bucket_notification_configuration(
        Bucket=BUCKET, NotificationConfiguration={"QueueConfigurations": configured}
    )
    for key in KEYS:
        s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode() * 20)
    s3.close()
    until(lambda: gallery.mirrored() == gallery.objects(), 120, what="the mirror to be as the bucket")


def _an_hour_ago(request: Any, **_: Any) -> None:
    request.headers["X-Minio-Source-Mtime"] = (datetime.now(UTC) - timedelta(hours=1)).isoformat()


def populate(gallery: Gallery) -> None:
    """Targets that work, fail, are away and are paused, with events in every state."""
    whole, receiver = gallery.whole, gallery.receiver
    away = f"http://{services.LOOPBACK}:{services.free_port()}/"
    receiver.set(
        Answer(422, containing="raw", body="no preview of this format"),
        Answer(500, containing="huge", body="out of memory"),
    )
    slow = {"retry_base": "10m", "retry_max_delay": "10m"}
    whole.add_target("webhook:thumbnails", "uploads", EVENTS, endpoint=receiver.url, **slow)
    whole.add_target("webhook:search", "uploads", ["s3:ObjectCreated:*"], endpoint=receiver.url)
    for target, suffix in (("webhook:thumbnails", ".jpg"), ("webhook:search", "")):
        rule = {"bucket": BUCKET, "events": EVENTS, "target": target, "suffix": suffix}
        whole.ask("POST", "/v1/rules", json=rule)
    whole.add_target("webhook:billing", "invoices", EVENTS, endpoint=away)
    whole.ask("PUT", "/v1/sources/kafka/minio", json={"brokers": "kafka.example.com:9092", "topic": "events"})
    reject(whole.database, b'{"Records": "none"}', b"\xff")
    whole.ask("POST", "/v1/targets/webhook/search/pause", json={"reason": "the index is rebuilt"})
    good = [event(f"faro/IMG_{number:04}.jpg", bucket="uploads") for number in range(500, 524)]
    bad = [event(f"faro/IMG_{number:04}.raw", bucket="uploads") for number in range(500, 503)]
    huge = [event("faro/panorama-huge.tif", bucket="uploads") for _ in range(2)]
    bills = [event(f"2026-10/{number}.pdf", bucket="invoices") for number in range(6)]
    records = ",".join(one.record for one in [*good, *bad, *huge, *bills])
    whole.post(f'{{"Records":[{records}]}}'.encode())
    until(lambda: _counted(whole, "webhook:thumbnails", delivered=24, dead=3, parked=2), 120, what="all to be settled")
    until(lambda: whole.target("webhook:billing")["state"] == "unavailable", 120)


def _counted(whole: System, target: str, **expected: int) -> bool:
    events = whole.target(target)["events"]
    return {name: events[name] for name in expected} == expected


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(params=["light", "dark"])
def look(request: pytest.FixtureRequest, browser: Browser, gallery: Gallery) -> Iterator[Visit]:
    """A signed-in look at the console in one theme, without any error in the end."""
    visitor = Visit(
        browser,
        gallery.whole.api.url,
        {"color_scheme": request.param, "viewport": {"width": 1280, "height": 860}},
        theme=request.param,
    )
    try:
        visitor.sign_in(ADMIN)
        yield visitor
        visitor.check()
    finally:
        visitor.close()


@pytest.mark.parametrize("look", ["light"], indirect=True)
def test_drift_is_found_looked_at_and_its_repair_approved(look: Visit, gallery: Gallery) -> None:
    page, expected = look.page, gallery.damage()
    page.goto("audit?action=reconciliation.start")
    before = page.locator("tbody tr").count()
    # Begun by hand: a Spark worker compares, and repairs nothing.
    page.goto("reconciliations")
    page.get_by_label("Mirror", exact=True).select_option(MIRROR)
    page.get_by_label("Bucket", exact=True).fill(BUCKET)
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("status").first).to_contain_text("waits for its turn at a Spark worker")
    page.locator("tbody th small a").first.click()
    _await_end(page, "drift")
    page.reload()
    assert _findings(page) == expected
    assert gallery.mirrored() != gallery.objects()
    look.shoot_for_docs("reconciliation")
    assert look.problems() == []
    page.get_by_role("link", name="missing", exact=True).click()
    assert set(_findings(page).values()) == {"missing"}
    page.get_by_role("link", name="all", exact=True).click()
    # Approved: another run compares again, and repairs what differs.
    page.get_by_role("button", name="Approve the repair").click()
    expect(page.get_by_role("status").first).to_contain_text("A new run compares again")
    _await_end(page, "repaired")
    until(lambda: gallery.mirrored() == gallery.objects(), 120, what="the mirror to be as the bucket again")
    page.goto("reconciliations")
    trend = page.get_by_role("region", name="Table of drift").locator("tbody tr")
    expect(trend).to_have_count(1)
    expect(trend.locator("td.right")).to_have_text(["5", "0"])
    assert look.problems() == []
    page.goto("audit?action=reconciliation.start")
    expect(page.locator("tbody tr")).to_have_count(before + 2)


def _await_end(page: Page, state: str) -> None:
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text(ENDED, timeout=SPARK_PATIENCE)
    assert state in verdict.inner_text()


def _findings(page: Page) -> dict[str, str]:
    rows = page.get_by_role("region", name="Findings").locator("tbody tr")
    return {row.locator("th").inner_text(): row.locator("td").first.inner_text() for row in rows.all()}


def test_the_screens_of_the_documentation(look: Visit, gallery: Gallery) -> None:
    page, whole = look.page, gallery.whole
    [retried] = whole.ask("GET", "/v1/retries", params={"target": "webhook:thumbnails"}).json()["retries"]
    thumbnails = "targets/webhook/thumbnails"
    until(lambda: page.goto(thumbnails) and page.locator(".chart canvas").count() >= 3, 180, what="samples to draw")
    _keep_busy(page, whole)
    screens = {
        "overview": "",
        "target": thumbnails,
        "event": f"events/{retried['event_id']}",
        "dead-letters": "dead-letters",
        "rules": f"rules?try_bucket={BUCKET}&key=2026/07/lisbon/IMG_0410.jpg",
        "reconciliations": "reconciliations",
        "events": f"events?bucket={BUCKET}",
        "workers": "workers",
    }
    problems = {}
    for name, path in screens.items():
        page.goto(path)
        page.wait_for_load_state("load")
        look.shoot_for_docs(name)
        if found := look.problems():
            problems[name] = found
    assert problems == {}


def _keep_busy(page: Page, whole: System) -> None:
    """Post events until the overview has the rate and the delivery times of them."""
    numbers = count(600)

    def shows_a_rate() -> bool:
        events = [event(f"faro/IMG_{next(numbers):04}.jpg", bucket="uploads") for _ in range(5)]
        whole.post(f'{{"Records":[{",".join(one.record for one in events)}]}}'.encode())
        page.goto("")
        tiles = page.locator(".tiles").inner_text()
        return all(re.search(rf"{name}\n(?!0\.0)\d", tiles) for name in ("Coming in", "Delivered, all targets"))

    until(shows_a_rate, 120, what="two samples with events")


@pytest.mark.parametrize("look", ["light"], indirect=True)
def test_the_name_of_the_page_is_in_sight_in_a_narrow_window(look: Visit) -> None:
    look.page.set_viewport_size({"width": 320, "height": 640})
    for path in ("audit", "doctor", "events", ""):
        look.page.goto(path)
        place = look.page.locator(".nav [aria-current]").bounding_box()
        assert place is not None
        assert 0 <= place["x"] <= 320 - place["width"], path
