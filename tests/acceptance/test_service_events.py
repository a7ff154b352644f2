"""The whole service reports a target that is down, to a target that is up."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests import services
from tests.services import until
from tests.support.builders import event
from tests.support.service_processes import system
from tests.support.target_readers import listed

PATIENCE = 60
PUT_BODY = '{"Records":[%s]}'


@pytest.mark.nightly("the reports in tests/integration/outbox/test_notices.py")
def test_a_target_that_is_down_and_up_again_is_reported_to_another_target(
    postgres_server: services.Postgres, redis_server: services.Redis
) -> None:
    url = postgres_server.create_database(f"outbox_{uuid4().hex[:12]}")
    ops = f"ops-{uuid4().hex[:12]}"
    with services.redis() as broker, system(url, broker.url, service_events="on") as whole, services.receiver() as down:
        place = f"{services.LOOPBACK}:{redis_server.port}"
        whole.add_target(
            "redis:ops", "bucketwire:service", events=["bucketwire:*"], address=place, key=ops, format="access"
        )
        whole.add_target("webhook:audit", "images", endpoint=down.url)

        def told() -> list[str]:
            """What was reported about it, each once: a delivery may be repeated."""
            records = listed(redis_server, ops)
            about = [record for record in records if record["s3"]["object"]["key"] == "webhook%3Aaudit"]
            return list(dict.fromkeys(record["eventName"] for record in about))

        down.kill()
        whole.post((PUT_BODY % event(bucket="images").record).encode())
        unavailable, available = "bucketwire:TargetUnavailable", "bucketwire:TargetAvailable"
        until(lambda: told() == [unavailable], PATIENCE, what="the report that it is unavailable")
        down.start()
        until(lambda: told() == [unavailable, available], PATIENCE, what="the report that it is available again")
        until(whole.settled, PATIENCE)
        assert all(entry.difference == 0 for entry in whole.audits())
