"""What an operator reads of a database and a broker that go away and come back: that, once each, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack, suppress

import httpx
import orjson
import pytest

from tests import services
from tests.services import until
from tests.support.builders import body, some
from tests.support.service_processes import Role, source_worker, start_all, stop_all, system

PATIENCE = 90
LOST, BACK = "the outbox database is unavailable: ", "the outbox database is available again"
FAILS, WORKS = "cannot be used: ", "the broker works again"
PROCESSES = {"api": 3, "worker --only targets --concurrency 1": 2}  # of which each may log it; one of the others


@pytest.mark.nightly("every process; of one, test_outage.py and test_refusing_broker.py")
@pytest.mark.parametrize("form", ["text", "json"])
def test_each_process_logs_the_loss_and_the_return_of_database_and_broker_once(
    form: str, receiver: services.Receiver
) -> None:
    with ExitStack() as stack:
        database, broker = stack.enter_context(services.postgres()), stack.enter_context(services.redis())
        url = database.create_database("outbox")
        whole = stack.enter_context(system(url, broker.url, concurrency=1, start=False, log_format=form))
        spark = Role(["worker", "--only", "spark"], whole.settings, " ready.")
        workers = [whole.drain, *whole.workers, source_worker(whole.settings), spark]
        roles = [whole.api, whole.beat, *workers]
        stack.callback(stop_all, roles)
        whole.beat.ready = "beat: Starting"
        start_all(roles)
        whole.add_target("webhook:a", endpoint=receiver.url)
        posted = 0

        def post() -> None:
            nonlocal posted
            with suppress(AssertionError, httpx.HTTPError):
                whole.post(body(*some("images", 2, first=posted)))
            posted += 2

        def lines(text: str) -> dict[str, int]:
            return {" ".join(role.arguments): role.said().count(text) for role in roles}

        def all_log(text: str, among: list[Role]) -> Callable[[], bool]:
            names = {" ".join(role.arguments) for role in among}

            def logged() -> bool:
                post()
                found = lines(text)
                return all(found[name] for name in names)

            return logged

        post()
        until(lambda: whole.settled("webhook:a"), PATIENCE, what="the first delivery")
        database.stop()
        until(all_log(LOST, [whole.api, *workers]), PATIENCE, what="that the database is lost")
        database.start()
        until(all_log(BACK, [whole.api, *workers]), PATIENCE, what="that the database is back")
        broker.stop()
        until(all_log(FAILS, roles), PATIENCE, what="that the broker is lost")
        broker.start()
        until(all_log(WORKS, roles), PATIENCE, what="that the broker is back")
        for begin, end in ((LOST, BACK), (FAILS, WORKS)):
            lost = lines(begin)
            assert lines(end) == lost
            assert all(count <= PROCESSES.get(name, 1) for name, count in lost.items()), lost
        for role in roles:
            said = role.said()
            assert not re.search(r"Warning|Traceback", said), " ".join(role.arguments)
            if form == "json":
                parsed = [orjson.loads(line) for line in said[: said.rfind("\n") + 1].splitlines()]
                assert not [line for line in parsed if "trace" in line]
                assert all({"time", "level", "logger", "pid", "message"} <= line.keys() for line in parsed)
