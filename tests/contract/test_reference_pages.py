"""The reference pages of the targets: every key is explained, and the consumers on them work as they stand."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from contextlib import closing
from dataclasses import fields

import pytest

from app.config.declared_types import TYPES
from app.config.targets.base import TargetSettings
from tests import services
from tests.contract.probes import postgresql, redis
from tests.contract.probes.webhook import webhook
from tests.support import sample_events
from tests.support.doc_consumers import consumers, output, page
from workers.delivery.outcomes import DELIVERED
from workers.targets.base import TargetUnavailable


@pytest.mark.parametrize("type_", TYPES)
def test_a_page_names_every_key_of_its_type_and_no_other(type_: str) -> None:
    common = {each.name for each in fields(TargetSettings)}
    own = {each.name for each in fields(TYPES[type_])} - common
    rows = re.findall(r"^\| (`.*?) \|", page(type_).partition("## Settings")[2].partition("\n## ")[0], re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert own <= named
    assert named <= own | common


def test_the_consumers_of_redis_read_what_was_delivered() -> None:
    with services.redis() as server:
        probe = redis.Namespace.__new__(redis.Namespace)
        probe.server = server
        event = sample_events.put("cat.jpg", number=77)
        for changes in (
            {"key": "bucketevents", "format": "access"},
            {"key": "bucketobjects", "format": "namespace"},
            {"key": "bucketstream", "format": "stream"},
        ):
            assert probe.delivered([event], password="", **changes) == [DELIVERED]
        reading_list, reading_stream, reading_hash = consumers("redis", **{"6379": str(server.port)})
        assert output(reading_list) == ["s3:ObjectCreated:Put images cat.jpg"]
        assert output(reading_stream) == ["s3:ObjectCreated:Put images cat.jpg 77"]
        assert output(reading_stream) == []  # it is acknowledged
        assert output(reading_hash) == ["images/cat.jpg 77"]


def test_the_consumers_of_postgresql_read_what_was_delivered() -> None:
    with services.postgres() as server:
        probe = postgresql.Namespace.__new__(postgresql.Namespace)
        probe.server, probe.table = server, ""
        event = sample_events.put("cat.jpg", number=77)
        for table, format_ in (("bucketevents", "access"), ("bucketobjects", "namespace")):
            assert probe.delivered([event], table=table, format=format_) == [DELIVERED]
        dsn = "host=localhost port=5432 user=me password=secret dbname=events"
        reading_rows, reading_events = consumers("postgresql", **{dsn: server.dsn()})
        assert output(reading_rows) == ["images/cat.jpg 77"]
        (line,) = output(reading_events)
        assert line.endswith(" s3:ObjectCreated:Put cat.jpg")


def test_the_receiver_of_the_webhook_page_takes_what_is_sent() -> None:
    port = services.free_port()
    secret = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"
    (program,) = consumers("webhook", **{"8080": str(port)})
    log = services.new_folder("consumer") / "log"
    with log.open("w") as file:
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdout=file, stderr=file, env=os.environ | {"SIGNING_SECRET": secret}
        )
    try:
        target = webhook(f"http://127.0.0.1:{port}/", signing_secret=secret)

        def opens() -> bool:
            assert child.poll() is None, log.read_text()
            try:
                target.open()
            except TargetUnavailable:
                return False
            return True

        services.until(opens)
        event = sample_events.put("cat.jpg")
        assert list(target.deliver([event], 1)) == [DELIVERED]
        target.close()
        with closing(
            webhook(f"http://127.0.0.1:{port}/", signing_secret=f"whsec_{base64.b64encode(bytes(32)).decode()}")
        ) as forged:
            assert list(forged.deliver([event], 1)) != [DELIVERED]
    finally:
        child.kill()
        child.wait()
    assert log.read_text().splitlines()[0] == f"{event.id} s3:ObjectCreated:Put images/cat.jpg"
