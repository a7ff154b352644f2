"""Who may import whom (docs/explanation/architecture.md, "Code layout"), read from the code itself."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from app.config.declared_types import TYPES

ROOT = Path(__file__).parents[2]
OURS = ("app", "workers", "migrations", "spark_jobs", "tests", "bench")
KNOWS_THE_EMBEDDED_REDIS = {"app/supervisor/embedded_redis.py"}
# What the drivers of SQLAlchemy lack is made good there.
KNOWS_THE_OUTBOX_SERVER = {"app/outbox/engine/mysql.py", "app/outbox/engine/postgresql.py"}
# Which keywords a connection string has is libpq's to say.
KNOWS_LIBPQ = {"app/config/targets/postgresql.py"}
# kombu has no name for py-amqp's error of a message that the broker has refused.
KNOWS_THE_BROKER = {"app/broker.py"}
OF_TARGETS = ("workers/systems", "workers/targets")
KNOWS_CELERY = {"workers/broker_consumer.py", "workers/celery.py", "workers/tasks.py"}


def modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, wherever in the file."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    inside = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{inside} imports relatively; write the whole name"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def drivers() -> set[str]:
    """What targets and sources import: of packages that are not ours, but for those that others of us need too."""
    imported = {name.partition(".")[0] for path in modules(*OF_TARGETS) for name in imports(path)}
    shared = {"app", "workers", "botocore", "orjson", "urllib3"}
    return (imported - shared - sys.stdlib_module_names) | {"confluent_kafka", "nsq", "pika"}


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def crossings(folder: str, *forbidden: str, allowed: frozenset[str] | set[str] = frozenset()) -> list[str]:
    """The imports of a folder that cross into what it must not know."""
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(folder)
        if str(path.relative_to(ROOT)) not in allowed
        for name in imports(path)
        if within(name, *forbidden)
    ]


def test_what_takes_events_in_knows_nothing_of_what_takes_them_out() -> None:
    assert crossings("app", "workers", "spark_jobs", "celery") == []
    assert crossings("migrations", "workers", "spark_jobs", "celery", "app.api", "app.cli") == []


def test_one_module_of_app_knows_the_broker() -> None:
    assert crossings("app", "kombu", allowed=KNOWS_THE_BROKER) == []


def test_app_knows_no_targets_driver() -> None:
    allowed = KNOWS_THE_EMBEDDED_REDIS | KNOWS_THE_OUTBOX_SERVER | KNOWS_LIBPQ | KNOWS_THE_BROKER
    assert drivers() >= {"amqp", "elasticsearch", "kafka", "nats", "paho", "psycopg2", "pymysql", "redis"}
    assert crossings("app", *drivers(), allowed=allowed) == []


@pytest.mark.parametrize(
    ("folder", "not_known"),
    [
        ("app/events", ["app.config", "app.rules", "app.outbox", "app.api", "app.cli", "app.supervisor"]),
        ("app/resources", ["app.rules", "app.outbox", "app.api", "app.cli", "app.console", "app.supervisor"]),
        ("app/rules", ["app.outbox", "app.api", "app.cli", "app.supervisor"]),
        ("app/listings", ["app.config", "app.rules", "app.outbox", "app.api", "app.cli", "app.supervisor"]),
        ("app/config", ["app.rules", "app.outbox", "app.api", "app.cli", "app.supervisor"]),
        ("app/outbox", ["app.api", "app.cli", "app.supervisor"]),
        ("app/outbox/engine", ["app.outbox.log", "app.outbox.delivery", "app.outbox.admin", "app.outbox.registry"]),
        ("app/outbox/log", ["app.outbox.delivery", "app.outbox.admin", "app.outbox.registry"]),
        ("app/outbox/delivery", ["app.outbox.admin", "app.outbox.migration", "app.outbox.schema_version"]),
        ("app/api", ["app.console", "app.server", "app.cli", "app.supervisor"]),
        ("app/console", ["app.outbox", "app.rules", "app.api.routes", "app.server", "app.cli", "app.supervisor"]),
        ("app/server", ["app.cli", "app.supervisor"]),
        ("app/supervisor", ["app.cli", "app.api", "app.server"]),
        ("app/telemetry", ["app.api", "app.config", "app.outbox", "app.rules", "app.cli", "app.supervisor"]),
        (
            "app/cli_common",
            ["app.cli", "app.api", "app.supervisor", "app.manifest", "app.minio_queue_dir", "app.minio_rules"],
        ),
    ],
)
def test_arrows_in_app_point_inwards(folder: str, not_known: list[str]) -> None:
    assert crossings(folder, *not_known) == []


# The modules of commands that work on the outbox without a route of the API, each with its reason.
OUTBOX_WITHOUT_A_ROUTE = {
    "app/cli/context.py": "opens the outbox for the routes that it runs",
    "app/cli/commands/config.py": "reseals secrets, and exports them: no route shows a secret",
    "app/cli/commands/doctor.py": "checks a service whose database or API may be away",
    "app/cli/commands/import_minio.py": "records a MinIO's undelivered events from files of this machine",
    "app/cli/commands/migrate.py": "creates the tables that the routes need",
    "app/cli/commands/processes.py": "starts processes",
    "app/cli/commands/sources.py": "tests a source from this machine, with its secrets",
    "app/cli/commands/targets.py": "sends a test from this machine, with the target's secrets",
    "app/cli/commands/up.py": "starts processes",
    "app/cli/commands/watch.py": "follows the log from any time, which no stream does; reads the embedded Redis",
}


def test_commands_speak_the_api_but_where_no_route_does_the_job() -> None:
    users = {
        str(path.relative_to(ROOT))
        for path in modules("app/cli")
        if any(within(name, "app.outbox", "app.cli_common.context") for name in imports(path))
    }
    assert users == OUTBOX_WITHOUT_A_ROUTE.keys()


def test_events_need_the_standard_library_and_orjson_only() -> None:
    known = (*sys.stdlib_module_names, "orjson", "app.events")
    strangers = [
        f"{path.name} imports {name}"
        for path in modules("app/events")
        for name in imports(path)
        if not within(name, *known)
    ]
    assert strangers == []


def test_a_target_knows_neither_the_outbox_nor_celery() -> None:
    """Nor does a source: of its folder only what runs one knows them."""
    not_known = [
        "app.outbox",
        "celery",
        "kombu",
        "workers.celery",
        "workers.tasks",
        "workers.delivery.partition_worker",
        "workers.delivery.settlement",
        "workers.deliverer",
        "workers.drain",
        "workers.runtime",
        "workers.delivery.retry",
        "workers.sources.puller",
        "workers.sources.runner",
        "workers.sources.source_thread",
        "workers.sources.watcher",
    ]
    assert [each for folder in OF_TARGETS for each in crossings(folder, *not_known)] == []


def test_what_systems_share_knows_none_of_them_and_a_system_no_other() -> None:
    assert [
        each for folder in ("targets", "sources") for each in crossings(f"workers/{folder}", "workers.systems")
    ] == []
    systems = {path.parent.name for path in (ROOT / "workers/systems").glob("*/target.py")}
    assert len(systems) == len(TYPES)
    for system in systems:
        others = [f"workers.systems.{other}" for other in systems - {system}]
        assert crossings(f"workers/systems/{system}", *others) == []


def test_a_target_does_not_know_its_systems_source_nor_a_source_the_target() -> None:
    for path in (ROOT / "workers/systems").glob("*/source.py"):
        if not path.with_name("target.py").exists():  # a bucket is no target
            continue
        system = f"workers.systems.{path.parent.name}"
        assert not [name for name in imports(path.with_name("target.py")) if within(name, f"{system}.source")]
        assert not [name for name in imports(path) if within(name, f"{system}.target")]


def test_three_files_know_celery() -> None:
    assert crossings("workers", "celery", allowed=KNOWS_CELERY) == []
    importers = {
        str(path.relative_to(ROOT))
        for folder in ("app", "workers")
        for path in modules(folder)
        if any(within(name, "workers.celery", "workers.tasks") for name in imports(path))
    }
    assert importers == {"workers/tasks.py"}


def test_nothing_knows_the_spark_jobs() -> None:
    assert [each for folder in ("app", "workers", "migrations") for each in crossings(folder, "spark_jobs")] == []


def test_the_spark_jobs_know_app_and_neither_its_interfaces_nor_the_workers() -> None:
    not_known = ["workers", "celery", "kombu", "migrations", "app.api", "app.cli", "app.supervisor"]
    assert crossings("spark_jobs", *not_known) == []


def test_workers_do_not_know_the_supervisor() -> None:
    assert crossings("workers", "app.supervisor") == []


def test_only_the_outbox_knows_its_tables() -> None:
    others = (path.name for path in (ROOT / "app").iterdir() if path.is_dir() and path.name != "outbox")
    folders = ["workers", "spark_jobs", *(f"app/{name}" for name in others if name != "__pycache__")]
    assert [each for folder in folders for each in crossings(folder, "app.outbox.tables")] == []


def test_no_part_of_the_product_knows_its_tests() -> None:
    for folder in ("app", "workers", "migrations", "spark_jobs"):
        assert crossings(folder, "tests", "bench", "pytest") == []


def test_a_test_module_takes_nothing_from_another_but_tests_to_run_again() -> None:
    """What several use is in `tests/support`, `tests/services` or the probes."""
    taken = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules("tests", "bench")
        if re.search(r"\btests\.[\w.]*\btest_", path.read_text())  # few are parsed
        for name in imports(path)
        if re.search(r"^tests\..*\btest_\w+\.(?!test_)", name)
    ]
    assert taken == []


def test_the_seam_between_the_two_halves_is_names_of_programs() -> None:
    """One module starts `celery -A workers.celery` and the tests of targets and sources, one a test of settings; nobody
    else in app may name a module of workers.
    """
    naming = {
        str(path.relative_to(ROOT))
        for path in modules("app")
        if "workers." in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("workers.")
    }
    assert naming == {"app/cli/commands/processes.py", "app/api/routes/targets.py"}


def test_one_package_knows_opentelemetry_and_is_imported_where_it_is_wanted() -> None:
    users = [
        str(path.relative_to(ROOT))
        for path in modules("app", "workers", "spark_jobs", "migrations", "bucketwire")
        if any(within(name, "opentelemetry", "app.telemetry.otlp") for name in imports(path))
    ]
    inside = [name for name in users if name.startswith("app/telemetry/otlp/")]
    assert set(users) - set(inside) == {"app/telemetry/__init__.py"}
    assert len(inside) >= 3
    door = ast.parse((ROOT / "app/telemetry/__init__.py").read_text())
    at_once = [node.module for node in door.body if isinstance(node, ast.ImportFrom)]
    assert "app.telemetry.switch" in at_once
    assert "app.telemetry.otlp.exports" not in at_once


def test_a_crossing_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "x.py").write_text(
        "def f():\n    from workers.delivery import partition_worker\n    import celery.app\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert crossings("app", "workers", "celery") == [
        "app/x.py imports workers.delivery",
        "app/x.py imports workers.delivery.partition_worker",
        "app/x.py imports celery.app",
    ]
