"""The service in containers, each part by itself, over a real PostgreSQL and broker; parts are stopped and killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import cycle

import httpx
import redis

from tests import services
from tests.images.engine import Docker
from tests.support.builders import event

EVENTS, BATCH = 10_000, 100
EVERY = 5  # batches between two faults
PATIENCE = 600  # seconds; a part that was killed starts in two, but not on a busy machine
COMMANDS = {
    "api": ["api"], "beat": ["beat"], "drain": ["worker", "--only", "drain"],
    "targets": ["worker", "--only", "targets", "--concurrency", "2"],
}  # fmt: skip
Container = Callable[..., str]


def deliver_under_faults(having: Docker, start: Container, broker: services.Redis | services.RabbitMQ) -> int:
    """Post events while one container after the other is stopped or killed; return how many objects have arrived.

    `start` starts a container of the service with a command and settings on the host's network, and returns its name.
    """
    with ExitStack() as stack:
        postgres, target = stack.enter_context(services.postgres()), stack.enter_context(services.redis())
        stack.enter_context(broker).start()
        listen = f"{services.LOOPBACK}:{services.free_port()}"
        settings = {
            "BUCKETWIRE_DATABASE_URL": postgres.create_database("outbox"),
            "BUCKETWIRE_BROKER_URL": broker.url,
            "BUCKETWIRE_LISTEN": listen,
            "BUCKETWIRE_SECRET_KEYS": "u9Qe0xkqDqk0yXH3p2o0hQ0XcX1m8o6v6fJm1pWcQ2A=",
        }
        migrated = start(stack, ["migrate"], settings)
        assert having.run("wait", migrated).stdout.strip() == "0", having.run("logs", migrated).stderr
        names = {part: start(stack, command, settings) for part, command in COMMANDS.items()}
        client = stack.enter_context(httpx.Client(base_url=f"http://{listen}", timeout=10, trust_env=False))
        store = {"address": f"{services.LOOPBACK}:{target.port}", "key": "objects", "format": "namespace"}
        ask(lambda: client.put("/v1/targets/redis/all", json=store))
        ask(lambda: client.post("/v1/rules", json={"bucket": "*", "events": ["*"], "target": "redis:all"}))

        def disturb(part: str, signal: str) -> None:
            having.run("kill", "--signal", signal, names[part])
            having.run("wait", names[part])
            having.run("start", names[part])

        post_under_faults(client, names, disturb)
        objects = redis.Redis(port=target.port)
        stack.callback(objects.close)
        return arrived(lambda: int(objects.hlen("objects")), EVENTS)  # type: ignore[arg-type]


def post_under_faults(client: httpx.Client, parts: Iterable[str], disturb: Callable[[str, str], None]) -> None:
    """Post events with the keys k0, k1, …; every few requests `disturb` ends a part by a signal and starts it again."""
    faults = cycle([(part, signal) for signal in ("TERM", "KILL") for part in parts])
    for number in range(EVENTS // BATCH):
        records = [event(f"k{number * BATCH + each}").record for each in range(BATCH)]
        content = f'{{"Records":[{",".join(records)}]}}'.encode()
        ask(lambda content=content: client.post("/v1/events", content=content))  # type: ignore[misc]
        if number % EVERY == 0:
            disturb(*next(faults))


def arrived(count: Callable[[], int], expected: int) -> int:
    """Wait until as many objects have arrived as are expected; return how many have."""
    deadline = time.monotonic() + PATIENCE
    while (number := count()) < expected and time.monotonic() < deadline:
        time.sleep(0.5)
    return number


def ask(request: Callable[[], httpx.Response]) -> None:
    """Send a request again until it succeeds, as a frontend does: recording is idempotent."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            answer = request()
        except httpx.TransportError as error:
            problem = repr(error)
        else:
            if answer.is_success:
                return
            problem = answer.text
        assert time.monotonic() < deadline, problem
        time.sleep(0.2)
