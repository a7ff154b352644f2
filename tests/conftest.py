"""Fixtures that every test may use: real servers for the session, fresh databases and receivers for a test."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import disk_usage
from typing import Any
from uuid import uuid4

import psutil
import pytest

from tests import services
from tests.services import server_process, speed
from tests.support import (
    authorities,
    compiled_pages,
    compiled_statements,
    interruption,
    parsing,
    properties,
    reruns,
    server_logs,
    tiers,
    without_servers,
)
from tests.support.distribution import Distribution, Durations
from tests.support.outboxes import Outboxes, in_file

_LOGGED = pytest.StashKey[dict[Path, int]]()
OUTBOXES = ("sqlite", "postgresql", "mysql", "mariadb")
_SERVERS = {"postgresql": "postgres_server", "mysql": "mysql_server", "mariadb": "mariadb_server"}


properties.load_profile()

_MEMORY = Path("/dev/shm")
_ROOM = 8 << 30  # bytes; what all servers of all test processes write at once is about half of that


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--tier 2` is what `make test` runs."""
    text = "run the tests of this tier and those below: tests/support/tiers.py"
    parser.addoption("--tier", type=int, choices=(tiers.USUAL, tiers.ALL), default=tiers.ALL, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """The shell's own settings must not reach a test; `tests.provision` has read BUCKETWIRE_CACHE by now.

    Nor its width: with COLUMNS commands wrap their lines in a pipe too.

    All files of tests and servers are in memory where there is room, since nothing here outlives the machine anyway:
    a SIGKILL leaves them as it leaves files on a disk, but nobody waits for the disk.
    """
    for name in [name for name in os.environ if name.startswith(("BUCKETWIRE_", "MINIO_", "COLUMNS"))]:
        del os.environ[name]
    room = os.access(_MEMORY, os.W_OK) and min(disk_usage(_MEMORY).free, psutil.virtual_memory().available // 2)
    if "TMPDIR" not in os.environ and room > _ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)
    speed.measure()
    parsing.take_turns()
    compiled_statements.share()
    compiled_pages.share()
    authorities.share()
    interruption.watch(config)
    config.pluginmanager.register(reruns, reruns.__name__)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What thousands of tests are made of stays to the end: no garbage collection has to go through it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without servers what is too dear is not even imported, unless it is named."""
    if server_process.NONE and collection_path.is_relative_to(config.rootpath):
        return str(collection_path.relative_to(config.rootpath)) in without_servers.DEAR or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is of a higher tier, and without servers what needs one.

    Do not run a test again that may have found a broken promise.
    """
    wanted = config.getoption("tier")
    chosen = [
        item
        for item in items
        if tiers.tier(item) <= wanted and not (server_process.NONE and without_servers.is_left_out(item))
    ]
    config.stash[tiers.LEFT_OUT] = list(set(items) - set(chosen))
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=config.stash[tiers.LEFT_OUT])
        items[:] = chosen
    for item in items:
        if item.get_closest_marker("promise"):
            item.add_marker(pytest.mark.flaky(reruns=0))
    if speed.slowness() > 1:
        lengthen(items, float(config.getini("timeout")), speed.slowness())


def lengthen(items: list[pytest.Item], usual: float, factor: float) -> None:
    """Give each test more time, as the limits of its waits have it."""
    for item in items:
        marker = item.get_closest_marker("timeout")
        (seconds, *_), options = (marker.args, marker.kwargs) if marker else ((usual,), {})
        item.add_marker(pytest.mark.timeout(seconds * factor, **options), append=False)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Distribution:
    """Give out the longest groups of tests first."""
    config.pluginmanager.register(Durations())
    return Distribution(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note how long the servers' logs are when a test begins."""
    server_process.forget_logs()
    item.stash[_LOGGED] = server_logs.sizes(services.logs)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Name the logs of the servers that logged something during a failed test; under CI=true, print their ends."""
    report: Any = yield
    if report.failed:
        files = server_logs.keep(item.nodeid, services.logs, item.stash[_LOGGED])
        lines = 15 if os.environ.get("CI") == "true" else 0
        if files:
            said = "\n".join("\n".join([str(file), *server_logs.tail(file, lines)]) for file in files)
            report.sections.append(("what the servers logged", said))
    return report


@pytest.fixture(scope="session")
def certificates() -> services.Certificates:
    """A certificate authority of this session, a server's and a client's certificate, and a stranger's."""
    return services.certificates()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[services.Redis]:
    """A Redis shared by the session: use keys or a database number of your own."""
    with services.redis() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[services.Postgres]:
    """A PostgreSQL shared by the session: leave it running, take `postgres_database` to write."""
    with services.postgres() as server:
        yield server


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[services.MySQL]:
    """A genuine MySQL 8 shared by the session."""
    with services.mysql() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[services.MariaDB]:
    """A MariaDB shared by the session."""
    with services.mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[services.RabbitMQ]:
    """A RabbitMQ shared by the session: use exchange and queue names of your own."""
    with services.rabbitmq() as server:
        yield server


@pytest.fixture
def receiver() -> Iterator[services.Receiver]:
    """A webhook receiver of this test's own, plain HTTP, answering 200 until told otherwise."""
    with services.receiver() as server:
        yield server


@pytest.fixture
def postgres_database(postgres_server: services.Postgres) -> Iterator[str]:
    """The SQLAlchemy URL of a fresh empty PostgreSQL database."""
    yield from _database(postgres_server)


@pytest.fixture(params=OUTBOXES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The SQLAlchemy URL of a fresh empty database, once for each kind that an outbox may live in."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/outbox.db"
    else:
        yield from _database(request.getfixturevalue(_SERVERS[request.param]))


@pytest.fixture(params=OUTBOXES)
def outbox_url(request: pytest.FixtureRequest, tmp_path: Path, outboxes: Outboxes) -> str:
    """The same with the tables of an outbox; `migrated` begins its log, which has as many partitions as that is told.

    It is this test's own, but has been another's: its server has run for a while, and its connections are ended.
    """
    if request.param == "sqlite":
        return in_file(tmp_path / "outbox.db")
    return outboxes.on(request.getfixturevalue(_SERVERS[request.param]))


@pytest.fixture
def postgres_outbox(postgres_server: services.Postgres, outboxes: Outboxes) -> str:
    """The same on PostgreSQL, for what does not depend on the database."""
    return outboxes.on(postgres_server)


@pytest.fixture(scope="session")
def outboxes() -> Iterator[Outboxes]:
    with closing(Outboxes()) as made:
        yield made


def _database(server: services.Postgres | services.MySQL) -> Iterator[str]:
    name = f"test_{uuid4().hex[:12]}"
    yield server.create_database(name)
    server.drop_database(name)
