"""Kill whatever the service consists of and works with, while events flow, and tell when all of it works again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random

from app.outbox.engine.database import now_ms
from tests import services
from tests.services import until
from tests.services.proxy_process import FarProxy, far_proxies
from tests.support.service_processes import Role, System
from tests.support.target_readers import Record, create_log, text
from tests.support.traffic import Traffic

PATIENCE = 40  # seconds after a kill until events have to come in and go out again, everywhere


@dataclass(frozen=True)
class Failover:
    """What a standby had when it took over from the outbox's database.

    An event that was answered before `began`, in seconds of the monotonic clock, was recorded by the lost server: until
    then the standby could only be read.
    """

    event_ids: frozenset[str]
    began: float


@dataclass
class Servers:
    """What the service works with; the outbox and Redis keep what they confirmed, the broker comes back empty."""

    broker: services.Redis | services.RabbitMQ
    database: services.Postgres | services.MySQL | None  # none where the outbox is an SQLite file
    redis: services.Redis
    postgres: services.Postgres
    receiver: services.Receiver
    queues: dict[str, services.Server] = field(default_factory=dict)  # that are pulled from, by their part
    source_workers: list[Role] = field(default_factory=list)  # that pull them
    proxies: dict[str, FarProxy] = field(default_factory=dict)  # before a target or the outbox, by its part's name
    failovers: list[Failover] = field(default_factory=list)  # of the outbox's database, until somebody takes them

    def port(self, part: str, server: services.Server) -> int:
        """The port at which the service reaches a target or the outbox: its proxy's, if there is one."""
        return self.proxies[part].port if part in self.proxies else server.port

    @property
    def redis_address(self) -> str:
        """Where the service reaches the Redis target."""
        return f"{services.LOOPBACK}:{self.port('Redis target', self.redis)}"

    @property
    def postgres_dsn(self) -> str:
        """How the service reaches the PostgreSQL target."""
        dsn = self.postgres.dsn("target")
        return dsn.replace(f"port={self.postgres.port}", f"port={self.port('PostgreSQL target', self.postgres)}")

    @property
    def webhook_url(self) -> str:
        """Where the service reaches the webhook target."""
        return f"http://{services.LOOPBACK}:{self.port('webhook target', self.receiver)}/"

    def create_outbox(self) -> str:
        """The URL of an empty outbox database."""
        if self.database is None:
            return f"sqlite:///{services.new_folder('outbox')}/outbox.db"
        return self.database.create_database("outbox")

    def seen_by_service(self, outbox_url: str) -> dict[str, str]:
        """The variable by which the service reaches the outbox, at its proxy if there is one."""
        if self.database is not None:
            near, far = self.database.port, self.port("database", self.database)
            outbox_url = outbox_url.replace(f":{near}/", f":{far}/")
        return {"BUCKETWIRE_DATABASE_URL": outbox_url}


OUTBOXES: dict[str, Callable[[], services.Postgres | services.MySQL | None]] = {
    "postgresql": lambda: services.postgres(durable=True),
    "mariadb": services.mariadb,
    "mysql": lambda: services.mysql(durable=True),
    "sqlite": lambda: None,
}
BROKERS: dict[str, Callable[[], services.Redis | services.RabbitMQ]] = {
    "redis": services.redis,
    "rabbitmq": services.rabbitmq,
}


@contextmanager
def serving(outbox: str = "postgresql", broker: str = "redis", *, proxied: bool = False) -> Iterator[Servers]:
    """Servers of one's own, as they will be killed; `outbox` and `broker` as `OUTBOXES` and `BROKERS` name them.

    With `proxied` the service reaches each target and the outbox through a proxy, which can be hurt in its place.
    """
    with ExitStack() as stack:
        task_broker = BROKERS[broker]()
        stack.callback(task_broker.stop)
        servers = Servers(
            broker=task_broker,
            database=OUTBOXES[outbox](),
            redis=stack.enter_context(services.redis(durable=True)),
            postgres=stack.enter_context(services.postgres()),
            receiver=stack.enter_context(services.receiver()),
        )
        stack.callback(lambda: servers.database and servers.database.stop())  # which may be another by then
        if proxied:
            hurt: dict[str, services.Server] = {
                "Redis target": servers.redis,
                "PostgreSQL target": servers.postgres,
                "webhook target": servers.receiver,
            }
            if servers.database is not None:
                hurt["database"] = servers.database
            made = stack.enter_context(far_proxies([server.port for server in hurt.values()]))
            servers.proxies.update(zip(hurt, made, strict=True))
        yield servers


@dataclass
class Victim:
    """Something to kill; `kill` brings it back too.

    Seconds from then on: `resumed` until events came in and went out to every target again, `recovered` until all from
    before was delivered, other kills meanwhile included.
    """

    name: str
    kill: Callable[[], None]
    resumed: list[float] = field(default_factory=list)
    recovered: list[float] = field(default_factory=list)


def victims(whole: System, servers: Servers, rng: Random) -> list[Victim]:
    """Each role, its children, and each server."""
    [worker] = whole.workers
    assert servers.database is not None

    def restart(server: services.Server) -> Callable[[], None]:
        def kill() -> None:
            server.kill()
            server.start()

        return kill

    def kill_parent() -> None:
        worker.kill_alone()
        worker.start()

    def kill_child(role: Role) -> Callable[[], None]:
        return lambda: os.kill(rng.choice(role.children()).pid, signal.SIGKILL)

    return [
        Victim("API", restart(whole.api)),
        Victim("API's child", kill_child(whole.api)),
        Victim("beat", restart(whole.beat)),
        Victim("drain", restart(whole.drain)),
        Victim("worker", restart(worker)),
        Victim("worker's parent", kill_parent),
        Victim("worker's child", kill_child(worker)),
        Victim("broker", restart(servers.broker)),
        Victim("database", restart(servers.database)),
        Victim("Redis target", restart(servers.redis)),
        Victim("webhook target", restart(servers.receiver)),
    ]


@dataclass
class Watch:
    """Looks at the counters ten times a second, and notes for each kill when all from before it was delivered.

    Only targets that get everything, for the whole of the run, are looked at.
    """

    flow: Traffic
    patience: float = PATIENCE  # seconds until all from before the last kill has to be delivered
    targets: frozenset[str] = frozenset()  # `type:name` of those that are looked at; none named: all
    known: Sequence[int] = ()  # how many were settled at each target when that was last known
    _settled: Sequence[int] = ()
    _done: Sequence[bool] = ()  # whether each target had settled all that was taken by then
    _names: Sequence[str] = ()
    _taken: int = 0  # how many were, by then
    _open: list[tuple[Victim, int]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _looking: Future[None] = field(default_factory=Future)

    @contextmanager
    def running(self) -> Iterator[Watch]:
        """Look again and again, at the end until everything has recovered."""
        with ThreadPoolExecutor(1) as pool:
            self._looking = pool.submit(self._run)
            try:
                yield self
                until(
                    lambda: self.settled and not self._open,
                    self.patience,
                    what="all from before the last kill delivered",
                )
            finally:
                self._over.set()

    @property
    def settled(self) -> Sequence[int]:
        """How many events are settled at each target, as last seen; none while nobody can say."""
        if self._looking.done():
            self._looking.result()
        return self._settled

    def killed(self, victim: Victim) -> None:
        """It dies now."""
        self._open.append((victim, now_ms()))

    def look(self) -> Sequence[int]:
        """Look now; what is settled at each target."""
        taken = self.flow.taken
        counters = [entry for entry in self.flow.counters() if not self.targets or str(entry.target) in self.targets]
        self._settled = [entry.delivered + entry.superseded for entry in counters]
        self.known = self._settled or self.known
        self._names = [str(entry.target) for entry in counters]
        self._done = [not entry.pending + entry.parked for entry in counters]
        self._taken = taken
        oldest = min((entry.oldest or now_ms() for entry in counters), default=0)
        for victim, at in [(victim, at) for victim, at in self._open if oldest > at]:
            self._open.remove((victim, at))
            victim.recovered.append((now_ms() - at) / 1000)
        return self._settled

    def idle(self) -> bool:
        """Nothing is left to deliver, and nothing more may be posted."""
        return self._all_known and bool(self.settled) and all(self._done)

    @property
    def _all_known(self) -> bool:
        """Everything that may be posted was taken before the last look."""
        return self.flow.all_taken and self._taken == self.flow.taken

    def moves(self, taken: int, before: Sequence[int]) -> bool:
        """Events come in, unless all have, and go out to every target, unless all have."""
        comes_in = self.flow.taken > taken or self.flow.all_taken
        over, now = self._all_known, zip(self.settled, before, self._done, strict=False)
        goes_out = [new > old or (over and done) for new, old, done in now]
        return comes_in and bool(goes_out) and all(goes_out)

    def still(self, taken: int, before: Sequence[int]) -> str:
        """What does not move, in words."""
        rows = zip(self._names, self.settled, before, self._done, strict=False)
        known = self._all_known
        stays = [f"{name} stays at {new}" for name, new, old, done in rows if new <= old and not (known and done)]
        if self.flow.taken <= taken and not self.flow.all_taken:
            stays.append(f"no event comes in after {taken}, posts refused: {dict(self.flow.refused)}")
        return ", ".join(stays) or ("all move" if self.settled else "the outbox cannot be read")

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self.look()


def target_settings(servers: Servers) -> dict[str, dict[str, str]]:
    """A log and a namespace in Redis and in PostgreSQL each, and a webhook: `type:name` to settings."""
    place, dsn = servers.redis_address, servers.postgres_dsn
    return {
        "redis:list": {"address": place, "key": "list", "format": "access"},
        "redis:namespace": {"address": place, "key": "rows"},
        "postgresql:access": {"connection_string": dsn, "table": "log", "format": "access"},
        "postgresql:namespace": {"connection_string": dsn, "table": "rows"},
        "webhook:all": {"endpoint": servers.webhook_url},
    }


def make_targets(whole: System, servers: Servers) -> None:
    """Make the targets of `target_settings`, all of which get everything."""
    servers.postgres.create_database("target")
    create_log(servers.postgres, "target", "log")
    for name, settings in target_settings(servers).items():
        whole.add_target(name, **settings)


def texts(found: dict[str, Record]) -> dict[str, bytes]:
    """Rows as they can be compared."""
    return {path: text(record) for path, record in found.items()}


def kill(victim: Victim, flow: Traffic, watch: Watch, rng: Random, share: int) -> None:
    """Kill it with posts and deliveries on their way, and return when events come in and go out again."""
    enough = sum(watch.look()) + rng.randrange(1, share)
    until(
        lambda: sum(watch.settled) >= enough or watch.idle(),
        PATIENCE,
        what=f"deliveries before {victim.name} is killed",
    )
    # Posting is quicker than delivering, so the posters get their next share only now.
    posts = flow.taken + rng.randrange(share * len(flow.posters))
    flow.allow_more(share)
    until(lambda: flow.taken >= posts, PATIENCE, what=f"posts before {victim.name} is killed")
    taken, settled, killed = flow.taken, watch.look(), time.monotonic()
    watch.killed(victim)
    victim.kill()
    until(lambda: watch.moves(taken, settled), PATIENCE, what=f"progress after {victim.name} was killed")
    victim.resumed.append(time.monotonic() - killed)
