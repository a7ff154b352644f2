"""Run Bucketwire itself as real processes: each role is a `Server` of the tests, to be hurt and stopped like others."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import httpx
import psutil

from app.outbox.admin.counters import Audit, TargetCounters, audit, read_counters
from app.outbox.engine.database import Database
from tests import services
from tests.services import reaper
from tests.services.forking import fork
from tests.support.builders import migrated

BUCKETWIRE = Path(sys.executable).with_name("bucketwire")
OTHER_CODE = [sys.executable, "-m", "app.cli"]  # the command of the code that PYTHONPATH names
_WORKER_READY = " ready."
_QUIET = 40  # looks at the counters, 0.2 s apart at most, without a new event: then no more is expected
FORKED = {"api", "beat", "flower", "up", "worker"}  # the commands that may be
AFRESH = {"PYTHONPATH"}  # settings that only a new process reads


@dataclass(eq=False)
class Role(services.Server):
    """One process of the service, as by its own command; `ready` is what its log says when it is.

    It is `forked` from one that has imported what it needs, as `bucketwire up` does it, if its settings allow it.
    """

    name: ClassVar[str] = "bucketwire"
    patience: ClassVar[float] = 60  # a worker finishes the batch in hand, which may take 30 s
    arguments: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    ready: str = ""
    forked: bool = True
    _from: int = field(init=False, default=0, repr=False)
    _orphans: list[psutil.Process] = field(init=False, default_factory=list, repr=False)

    def check(self) -> None:
        """It is ours and always there."""

    def argv(self) -> Sequence[str | Path]:
        return [*(OTHER_CODE if AFRESH & set(self.settings) else [BUCKETWIRE]), *self.arguments]

    def env(self) -> Mapping[str, str]:
        return {**self.settings, "PYTHONUNBUFFERED": "1"}

    def spawn(self) -> services.Child:
        program, *arguments = self.argv()
        if self.forked and program == BUCKETWIRE and arguments[0] in FORKED and not AFRESH & set(self.settings):
            return fork(["app.cli", *map(str, arguments)], self.log, env=self.env())
        return super().spawn()

    def start(self) -> Self:
        self._from = self.log.stat().st_size if self.log.exists() else 0
        return super().start()

    def ping(self) -> None:
        assert self.ready in self.said()

    def said(self) -> str:
        """Its log since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._from)
            return log.read().decode(errors="replace")

    def children(self) -> list[psutil.Process]:
        """Its direct children: the pool of a worker, the workers of gunicorn."""
        return psutil.Process(self.pid).children()

    def ask_to_stop(self) -> None:
        """SIGTERM, without waiting for the end."""
        os.kill(self.pid, signal.SIGTERM)

    def kill_alone(self) -> None:
        """SIGKILL the main process only; its children have to notice by themselves: see `orphans`."""
        assert self._child is not None
        self._orphans += reaper.family(self.pid)
        self._child.kill()
        self._child.wait(10)
        self._child = None

    def orphans(self) -> list[psutil.Process]:
        """The children of killed main processes that still run."""
        self._orphans = [process for process in self._orphans if reaper.alive(process)]
        return self._orphans

    def stop(self) -> None:
        super().stop()
        reaper.end(self.orphans())


@dataclass(eq=False)
class Api(Role):
    """The API; ready when it answers."""

    @property
    def url(self) -> str:
        return f"http://{services.LOOPBACK}:{self.port}"

    def env(self) -> Mapping[str, str]:
        return {**super().env(), "BUCKETWIRE_LISTEN": f"{services.LOOPBACK}:{self.port}"}

    def ping(self) -> None:
        services.get(self.port, "/healthz")


@dataclass
class System:
    """API, beat, a worker that drains and workers that deliver, over one database and one broker.

    `token` is sent with what the tests ask of the API, where there is one.
    """

    settings: Mapping[str, str]
    database: Database
    api: Api
    beat: Role
    drain: Role
    workers: list[Role]
    token: str = ""

    @property
    def roles(self) -> list[Role]:
        """All of them."""
        return [self.api, self.beat, self.drain, *self.workers]

    def client(self, **options: Any) -> httpx.Client:
        """A client of the API with the token; to be closed by the caller."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        # Without verification, which plain HTTP has none of, it does not read all authorities first.
        options = {"timeout": 30, "trust_env": False, "verify": False} | options
        return httpx.Client(base_url=self.api.url, headers=headers, **options)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request, which has to succeed."""
        with self.client() as client:
            answer = client.request(method, path, **options)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer

    def post(self, content: bytes) -> dict[str, Any]:
        """Post one body of events; the receipt."""
        receipt: dict[str, Any] = self.ask("POST", "/v1/events", content=content).json()
        return receipt

    def add_target(self, name: str, bucket: str = "*", events: Iterable[str] = ("*",), **settings: Any) -> str:
        """Make the target `type:name` with one rule, over the API; its ARN."""
        made = self.ask("PUT", f"/v1/targets/{name.replace(':', '/')}", json=settings).json()
        self.ask("POST", "/v1/rules", json={"bucket": bucket, "events": list(events), "target": name})
        return str(made["arn"])

    def target(self, name: str) -> dict[str, Any]:
        """The target `type:name` as the API shows it."""
        shown: dict[str, Any] = self.ask("GET", f"/v1/targets/{name.replace(':', '/')}").json()
        return shown

    def counters(self) -> dict[str, TargetCounters]:
        """The counters as they are now, by `type:name`."""
        with self.database.reading() as connection:
            return {str(entry.target): entry for entry in read_counters(connection)}

    def audits(self) -> list[Audit]:
        """The counters held against the log, over a connection that no restart of the database can have cut."""
        with self.another_database() as database:
            return audit(database)

    def another_database(self) -> contextlib.closing[Database]:
        """The outbox over connections of its own, to be closed by the caller."""
        return contextlib.closing(Database(self.database.url.render_as_string(hide_password=False)))

    def settled(self, *names: str) -> bool:
        """Nothing pending and nothing parked, at these targets or at all."""
        counters = self.counters()
        return all(counters[name].pending == counters[name].parked == 0 for name in names or counters)

    def settle(self) -> None:
        """Return when no event has come for a while and all are delivered."""
        last, unchanged = -1, 0

        def quiet() -> bool:
            nonlocal last, unchanged
            recorded = sum(entry.recorded for entry in self.counters().values())
            last, unchanged = recorded, unchanged + 1 if recorded == last else 0
            return unchanged >= _QUIET

        services.until(quiet, 300, what="no more events")
        services.until(self.settled, 120, what="everything delivered")

    def logs(self) -> str:
        """Everything that its processes have written so far."""
        return "".join(role.log.read_text(errors="replace") for role in self.roles if role.log.exists())


@contextmanager
def system(
    database_url: str,
    broker_url: str,
    *,
    workers: int = 1,
    concurrency: int = 2,
    partitions: int = 16,
    start: bool = True,
    token: str = "",
    environ: Mapping[str, str] = MappingProxyType({}),
    **settings: Any,
) -> Iterator[System]:
    """The whole service as separate processes; `settings` are `BUCKETWIRE_*` variables without the prefix.

    `environ` are variables of other names.
    """
    database = migrated(database_url, partitions=partitions)
    environment = {
        "BUCKETWIRE_DATA_DIR": str(services.new_folder("var")),
        "BUCKETWIRE_DATABASE_URL": database_url,
        "BUCKETWIRE_BROKER_URL": broker_url,
        "BUCKETWIRE_ALLOW_PRIVATE": "on",  # the receivers of the tests are on loopback
        **{f"BUCKETWIRE_{name.upper()}": str(value) for name, value in settings.items()},
        **environ,
    }
    targets = ["worker", "--only", "targets", "--concurrency", str(concurrency)]
    whole = System(
        settings=environment,
        database=database,
        api=Api(["api"], environment),
        beat=Role(["beat"], environment, "is starting."),
        drain=drain_worker(environment),
        workers=[Role(targets, environment, _WORKER_READY) for _ in range(workers)],
        token=token,
    )
    with ExitStack() as stack:
        stack.callback(database.close)
        stack.callback(stop_all, whole.roles)
        try:
            if start:
                start_all(whole.roles)
            yield whole
        except BaseException:
            for role in whole.roles:
                sys.stderr.write(f"\n--- {' '.join(role.arguments)}\n{role.tail()}\n")
            raise


def drain_worker(settings: Mapping[str, str]) -> Role:
    """A worker that only drains."""
    return Role(["worker", "--only", "drain"], settings, _WORKER_READY)


def source_worker(settings: Mapping[str, str]) -> Role:
    """A worker that only pulls from sources."""
    return Role(["worker", "--only", "sources"], settings, _WORKER_READY)


def start_all(roles: Iterable[services.Server]) -> None:
    """Start them at once and return when all are ready."""
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda role: role.start(), roles):
            pass


def stop_all(roles: Sequence[services.Server]) -> None:
    """Stop them at once; one that does not stop keeps none of the others running."""
    with ThreadPoolExecutor() as pool:
        for stopping in [pool.submit(role.stop) for role in roles]:
            with contextlib.suppress(TimeoutError):
                stopping.result()
