"""A library of which private parts are used is one whose next major version is refused until somebody has looked."""

from __future__ import annotations

import ast
import importlib
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FILES = [
    path for room in ("app", "bucketwire", "spark_jobs", "workers") for path in sorted((ROOT / room).rglob("*.py"))
]
# Of named tuples, enumerations, `os` and Flask, whose documentation names them.
PUBLIC = {"_asdict", "_exit", "_fields", "_get_current_object", "_replace", "_value_"}

# What is used of each library, and where. One more needs an upper bound in pyproject.toml, and a reason in the code.
PRIVATE = {
    "python": {  # its versions are tried by `make matrix`
        "app/server/gunicorn_worker.py":
            {"_adjust_thread_count", "_max_workers", "_shutdown", "_shutdown_lock", "_work_queue"},
        "app/http_answers.py": {"_close_conn", "_read_next_chunk_size", "_read_status"},
    },
    "amqp": {
        "workers/systems/amqp/source.py": {"_callbacks"},
        "workers/systems/amqp/connection.py": {"_connect", "_read", "_setup_transport", "_transport", "_wrap_socket"},
    },
    "billiard": {"workers/celery.py": {"_parent_pid"}},
    "boto3": {"spark_jobs/listings/s3_listing.py": {"_expiry_time", "_session"}},
    "gunicorn": {"app/server/gunicorn_worker.py": {"_cap_keepalive"}},  # and the whole class of the worker
    "kafka-python": {
        "workers/systems/kafka/source.py":
            {"_buffer", "_coordinator", "_detect_xerial_stream", "_maybe_uncompress", "_next_record_index", "_read_msg",
             "_subscription", "_timestamp"},
        "workers/systems/kafka/client.py": {"_scram_client", "_sock", "_sock_recv"},
        "workers/systems/kafka/target.py": {"_metadata", "_sender"},
    },
    "kombu": {"app/broker.py": {"_size"}, "app/socket_watchdog.py": {"_connparams"}},
    "nats-py": {"workers/systems/nats/connection.py": {"_build_message", "_server_info"}},
    "opentelemetry-exporter-otlp-proto-http": {"app/telemetry/otlp/exports.py": {"_log_exporter"}},
    "opentelemetry-sdk": {"app/telemetry/otlp/exports.py": {"_logs"}, "app/telemetry/otlp/records.py": {"_logs"}},
    "paho-mqtt": {
        "workers/systems/mqtt/link.py":
            {"_connect_timeout", "_create_socket_connection", "_get_proxy", "_handle_pubackcomp", "_handle_pubrec",
             "_in_packet", "_out_messages", "_sock_close", "_ssl_context", "_ssl_wrap_socket"},
    },
    "prometheus-client": {"workers/telemetry/metrics.py": {"_upper_bounds"}},
    "pymysql": {
        "app/outbox/engine/mysql.py": {"_create_ssl_ctx"},
        "workers/systems/mysql/connection.py":
            {"_current_timeout", "_execute_command", "_force_close", "_read_bytes", "_result", "_rfile", "_sock",
             "_write_bytes"},
    },
    "pyspark": {
        "spark_jobs/folders.py": {"_jsc", "_jvm"},
        "spark_jobs/iceberg.py": {"_jsparkSession", "_jvm"},
        "spark_jobs/listings/inventory.py": {"_jvm"},
        "spark_jobs/listings/source_inventory.py": {"_jsparkSession", "_jvm"},
        "spark_jobs/progress.py": {"_jsc"},
        "spark_jobs/session.py": {"_ensure_initialized", "_find_spark_home", "_gateway", "_jvm", "_lock"},
    },
    "redis": {"app/socket_watchdog.py": {"_sock"}, "workers/systems/redis/connection.py": {"_connect", "_sock"}},
    "urllib3": {
        "app/console/openid_provider.py": {"_new_conn"},
        "workers/targets/http_pool.py": {"_dns_host", "_new_conn"},
    },
    "werkzeug": {"app/api/services.py": {"_compile_builder"}},
}  # fmt: skip


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in PUBLIC


def parsed(source: str) -> list[ast.AST]:
    """All nodes of a file, which is asked several questions."""
    return list(ast.walk(ast.parse(source)))


def defined(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that a file gives to something of its own."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_itself(node):
            found.add(node.attr)
    return found


def of_itself(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def imported(nodes: Sequence[ast.AST]) -> dict[str, tuple[str, str]]:
    """What each name of a file is: the module of others, and the name there."""
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.asname or alias.name: (str(node.module), alias.name) for node in froms for alias in node.names}


def overridden(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """The private methods of a library's class that a class of ours replaces, also one that is mixed into it."""
    names = imported(nodes)
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            if not node.bases:
                supers = (each for each in ast.walk(node) if isinstance(each, ast.Attribute) and private(each.attr))
                yield from (each.attr for each in supers if ast.unparse(each.value) == "super()")
            methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef) and private(each.name)}
            for base in node.bases if methods else ():
                top, _, rest = ast.unparse(base).partition(".")
                module, name = names.get(top, ("app", ""))
                if module.split(".")[0] in ("app", "workers", "spark_jobs") or "[" in rest:
                    continue
                found = library_class(module, *filter(None, [name, *rest.split(".")]))
                yield from (method for method in methods if hasattr(found, method))


def library_class(module: str, *names: str) -> object:
    """What a library has under a name, which may be that of a module."""
    found: object = importlib.import_module(module)
    for name in names:
        if not hasattr(found, name) and isinstance(found, ModuleType):
            importlib.import_module(f"{found.__name__}.{name}")
        found = getattr(found, name)
    return found


def used(nodes: Sequence[ast.AST], ours: set[str]) -> Iterator[str]:
    own = defined(nodes)
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] not in ("app", "__future__"):
                yield from filter(private, (*module.split("."), *(alias.name for alias in names)))
            case ast.Import(names=names):
                yield from (part for alias in names for part in alias.name.split(".") if private(part))
            case ast.Attribute(attr=name) if private(name) and name not in (ours if of_itself(node) else own):
                yield name
            case ast.Call(func=ast.Name(id="getattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                yield from filter(private, [name])
    yield from overridden(nodes)


@pytest.mark.slow
def test_no_private_part_of_a_library_is_used_that_is_not_listed() -> None:
    files = {path: parsed(path.read_text()) for path in FILES}
    ours = set[str]().union(*map(defined, files.values()))
    found = {(str(path.relative_to(ROOT)), name) for path, nodes in files.items() for name in used(nodes, ours)}
    listed = {(file, name) for files in PRIVATE.values() for file, names in files.items() for name in names}
    assert found == listed


@pytest.mark.parametrize("library", sorted(PRIVATE.keys() - {"python"}))
def test_the_next_major_version_of_a_library_whose_private_parts_are_used_is_refused(library: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    bounds = [Requirement(each).specifier for each in wanted if Requirement(each).name == library]
    assert bounds
    assert [bound for bound in bounds if not any(one.operator == "<" for one in bound)] == []


def test_a_private_part_would_be_found() -> None:
    override = "from redis.connection import Connection\nclass C(Connection):\n    def _connect(self): self._sock\n"
    assert set(used(parsed(override), set())) == {"_connect", "_sock"}
    accesses = "from a._b import _c\nd._e = 1\nself._own = 2\nself._own\ngetattr(f, '_g')"
    assert set(used(parsed(accesses), {"_own"})) == {"_b", "_c", "_e", "_g"}
