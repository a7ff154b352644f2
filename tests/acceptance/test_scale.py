"""Two APIs, two beats and four workers in pools are one system: once each, in order, and stopped without a loss."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import orjson
import pytest
import yaml

from app.events.model import Event
from tests import services
from tests.services import until
from tests.support.builders import event
from tests.support.properties import times
from tests.support.service_processes import Api, Role, System, start_all, stop_all, system
from tests.support.target_readers import Expected, Record, hashed, listed, path, posted, text

LEASE = 120  # seconds: what waits for a lease to run out is late for every deadline here
PATIENCE = 60
COUNT = times(200, 400)  # events of each sender
DOCS = Path(__file__).parents[2] / "docs"


@dataclass
class Cluster:
    """The system and what is more than one of it; `pools` are its workers by what `--targets` says."""

    whole: System
    apis: Sequence[Api]
    pools: dict[str, Sequence[Role]]
    redis: services.Redis
    receiver: services.Receiver

    def work(self) -> None:
        """Start the workers that an earlier test has stopped."""
        start_all([role for pool in self.pools.values() for role in pool if not role.running])


@pytest.fixture(scope="module")
def cluster(postgres_server: services.Postgres, redis_server: services.Redis) -> Iterator[Cluster]:
    with ExitStack() as stack:
        broker = stack.enter_context(services.redis())
        receiver = stack.enter_context(services.receiver())
        url = postgres_server.create_database(f"outbox_{uuid4().hex[:12]}")
        whole = stack.enter_context(
            system(url, broker.url, workers=0, start=False, lease_ttl=f"{LEASE}s", lease_max_work="1s")
        )

        def pool(targets: str) -> Role:
            words = ["worker", "--only", "targets", "--targets", targets, "--concurrency", "1"]
            return Role(words, whole.settings, " ready.")

        whole.api.arguments = ["api", "--workers", "1"]
        other = Api(whole.api.arguments, whole.settings)
        pools = {"redis": [pool("redis")], "webhook": [pool("webhook"), pool("webhook")]}
        whole.workers = [role for some in pools.values() for role in some]
        roles = [*whole.roles, other, Role(["beat"], whole.settings, "is starting.")]
        stack.callback(stop_all, roles)
        start_all(roles)
        yield Cluster(whole, [whole.api, other], pools, redis_server, receiver)


@pytest.fixture
def bucket(cluster: Cluster) -> str:
    """A bucket of the test's own; the receiver answers at once."""
    cluster.receiver.set()
    return f"bucket-{uuid4().hex[:12]}"


def some(bucket: str, count: int, *, keys: int, prefix: str = "k") -> list[Event]:
    return [event(f"{prefix}{number % keys}", bucket=bucket) for number in range(count)]


def records(events: Sequence[Event]) -> list[Record]:
    return [orjson.loads(one.record) for one in events]


def post_by_turns(apis: Sequence[Api], bodies: Sequence[Sequence[Event]], first: int) -> None:
    """Each body when the one before was taken, at one API after the other."""
    with httpx.Client(timeout=PATIENCE, trust_env=False) as client:
        for number, events in enumerate(bodies, first):
            content = f'{{"Records":[{",".join(one.record for one in events)}]}}'
            answer = client.post(f"{apis[number % len(apis)].url}/v1/events", content=content)
            assert (answer.status_code, answer.json()["recorded"]) == (202, len(events))


def served_by(worker: Role) -> set[str]:
    """The types of target of which its log tells settled batches, since its start."""
    return set(re.findall(r"arn:minio:sqs:\S*:(\w+) .*delivered=", worker.said()))


def test_events_posted_at_two_apis_reach_every_target_once_in_order_through_pools_of_its_own(
    cluster: Cluster, bucket: str
) -> None:
    cluster.work()
    whole = cluster.whole
    cluster.receiver.set(delay=0.01)  # so that one worker does not do it all before the other has looked
    place: dict[str, Any] = {"address": f"{services.LOOPBACK}:{cluster.redis.port}"}
    names = [f"redis:{bucket}-list", f"redis:{bucket}-rows", f"webhook:{bucket}"]
    whole.add_target(names[0], bucket, key=f"{bucket}-list", format="access", **place)
    whole.add_target(names[1], bucket, key=f"{bucket}-rows", **place)
    whole.add_target(names[2], bucket, endpoint=cluster.receiver.url, sync="on")
    # Two senders, each of keys of its own, who change APIs with every body: order is kept across APIs.
    sent = {prefix: some(bucket, COUNT, keys=COUNT // 10, prefix=prefix) for prefix in ("a", "b")}
    with ThreadPoolExecutor() as pool:
        posting = [
            pool.submit(
                post_by_turns, cluster.apis, [events[start : start + 20] for start in range(0, COUNT, 20)], first
            )
            for first, events in enumerate(sent.values())
        ]
        for each in posting:
            each.result()
    until(lambda: whole.settled(*names), PATIENCE, what="everything delivered")

    taken = records([one for events in sent.values() for one in events])
    expected = Expected.of(taken)
    assert expected.check(listed(cluster.redis, f"{bucket}-list"), "the list") == 0
    assert expected.check([each for each in posted(cluster.receiver) if about(each, bucket)], "the receiver") == 0
    newest = {path(record): text(record) for record in taken}
    assert {name: text(row) for name, row in hashed(cluster.redis, f"{bucket}-rows").items()} == newest
    for entry in whole.audits():
        assert entry.difference == 0
    for name in names:
        counters = whole.counters()[name]
        assert (counters.recorded, counters.delivered + counters.superseded, counters.discarded) == (
            2 * COUNT,
            2 * COUNT,
            0,
        )
    for targets, workers in cluster.pools.items():
        assert [served_by(worker) for worker in workers] == [{targets}] * len(workers)


def about(record: Record, bucket: str) -> bool:
    name: str = record["s3"]["bucket"]["name"]
    return name == bucket


def test_workers_asked_to_stop_hand_over_in_the_middle_without_a_repeat_or_a_wait_for_leases(
    cluster: Cluster, bucket: str
) -> None:
    cluster.work()
    whole, name = cluster.whole, f"webhook:{bucket}"
    whole.add_target(name, bucket, endpoint=f"{cluster.receiver.url}/{bucket}", sync="on", batch_size=50)
    cluster.receiver.set(delay=0.03)
    sent = some(bucket, 300, keys=100)
    stays, goes = cluster.pools["webhook"]

    def arrived() -> list[Record]:
        return [each for each in posted(cluster.receiver) if about(each, bucket)]

    post_by_turns(cluster.apis, [sent[:150], sent[150:]], 0)
    until(lambda: len(arrived()) >= 20, PATIENCE, what="deliveries by both")
    asked = time.monotonic()
    goes.ask_to_stop()
    until(lambda: not goes.running, 30, what="the end of one worker")
    goes.stop()
    assert len(arrived()) < len(sent), "it has to stop in the middle, else this shows nothing"
    # What it had claimed or been offered goes to the one that stays. That one stops too, and nothing is in hand then.
    until(lambda: len(arrived()) >= 100, PATIENCE, what="deliveries by the one that stays")
    stays.ask_to_stop()
    until(lambda: not stays.running, 30, what="the end of the other")
    stays.stop()
    done = len(arrived())
    assert done < len(sent)
    assert whole.counters()[name].delivered == done, "what was sent was settled before the end"

    cluster.receiver.set()
    stays.start()
    until(lambda: whole.settled(name), LEASE / 2, what="the rest, without waiting for a lease")
    assert time.monotonic() - asked < LEASE
    assert Expected.of(records(sent)).check(arrived(), "the receiver") == 0
    assert [entry.difference for entry in whole.audits()] == [0] * len(whole.audits())


def queries(page: str, trigger: str) -> list[str]:
    """What a page has KEDA ask for the backlog: by this type of trigger, or the SQL that stands by itself."""
    blocks = re.findall(r"```(sql|yaml)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    found = [content for language, content in blocks if (language, trigger) == ("sql", "postgresql")]
    for objects in [yaml.safe_load(content) for language, content in blocks if language == "yaml"]:
        within = objects.get("spec", objects)["triggers"] if isinstance(objects, dict) else objects
        found += [each["metadata"]["query"] for each in within if each["type"] == trigger]
    return found


def test_the_documented_backlog_is_that_of_the_counters(
    cluster: Cluster, bucket: str, postgres_server: services.Postgres
) -> None:
    [worker, _] = cluster.pools["webhook"]
    if not worker.running:
        worker.start()
    whole, name = cluster.whole, f"webhook:{bucket}"
    [of_all, of_target] = queries("how-to/scale-out.md", "postgresql")
    cluster.receiver.set(
        services.Answer(containing='"key":"dead"', status=400), services.Answer(containing='"key":"parked"', status=500)
    )
    whole.add_target(name, bucket, endpoint=cluster.receiver.url, retry_base="1h", retry_max_delay="1h")
    # No pool serves this type: its events wait, and nobody finds out that there is no such server.
    whole.add_target(f"nsq:{bucket}", bucket, nsqd_address=f"{services.LOOPBACK}:9", topic="t")
    sent = [*some(bucket, 20, keys=5), event("dead", bucket=bucket), event("parked", bucket=bucket)]
    post_by_turns(cluster.apis, [sent], 0)
    until(lambda: whole.counters()[name].pending == 0, PATIENCE, what="all but two delivered")
    assert (whole.counters()[name].parked, whole.counters()[name].dead) == (1, 1)

    def asked(query: str) -> int:
        with postgres_server.connection(str(whole.database.url.database)) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            [[backlog]] = cursor.fetchall()
        return int(backlog)

    def backlog(target: str) -> int:
        type_name, _, own_name = target.partition(":")
        assert "t.type = 'webhook' AND t.name = 'audit'" in of_target
        return asked(of_target.replace("'webhook'", f"'{type_name}'").replace("'audit'", f"'{own_name}'"))

    assert (backlog(name), backlog(f"nsq:{bucket}"), backlog("nsq:nobody")) == (0, 22, 0)
    counters = whole.counters()
    assert asked(of_all) == sum(each.pending + each.parked + each.dead for each in counters.values()) >= 24
    whole.ask("POST", f"/v1/targets/nsq/{bucket}/pause", json={})
    assert backlog(f"nsq:{bucket}") == 0
    [by_prometheus, _] = queries("how-to/scale-out.md", "prometheus")
    metrics = whole.ask("GET", "/metrics").text
    for metric in set(re.findall(r"bucketwire_\w+", by_prometheus)):
        assert f"\n{metric}{{" in metrics
    assert f'\nbucketwire_target_pending_events{{name="{bucket}",type="nsq"}} 22.0' in metrics
