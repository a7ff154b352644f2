"""The newest servers and the other Pythons, beside those of `make test`: `make matrix`.

The servers are Debian's newest of Valkey, PostgreSQL, MySQL, MariaDB, RabbitMQ, NATS and Mosquitto, unpacked on this
Debian, and the newest Elasticsearch and OpenSearch; what databases, brokers and targets are asked for most runs against
them. On each other Python the unit tests run, and the service from its wheel. `python -m tests.matrix servers` and
`python -m tests.matrix 3.14` run a part.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import provision
from tests.support import debian_tree, interpreters

ROOT = Path(__file__).parents[1]
PYTEST = ("-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", "-p", "no:cacheprovider")
SERVERS = ("newest", "newest_mysql", "newest_elasticsearch", "newest_opensearch")
VERSIONS = (
    (provision.NEWEST, "valkey-server", "--version"),
    (provision.NEWEST, "sh", "-c", "/usr/lib/postgresql/*/bin/postgres --version"),
    (provision.NEWEST, "mariadbd", "--version"),
    (provision.NEWEST_MYSQL, "mysqld", "--version"),
    (provision.NEWEST, "nats-server", "--version"),
    (provision.NEWEST, "sh", "-c", "mosquitto -h | head -n 1"),
    (provision.NEWEST, "sh", "-c", "basename /usr/lib/rabbitmq/lib/rabbitmq_server-*"),
    (provision.NEWEST_JAVA, "sh", "-c", f"echo Elasticsearch {provision.NEW_ELASTICSEARCH_VERSION}; java --version"),
    (provision.NEWEST_JAVA, "echo", f"OpenSearch {provision.NEW_OPENSEARCH_VERSION}"),
)
# What a server of another version could answer otherwise: creating, delivering, refusals, logins, TLS, being killed.
TARGETS = "amqp or elasticsearch or mysql or nats-core or nats-jetstream or mqtt-qos1 or mqtt-5 or redis or postgresql"
ASKED = "opens or certificate or password or real_minio or poison_event or killed_server"
CONTRACT = ["tests/contract/test_target_contract.py", "-k", f"({TARGETS}) and ({ASKED})"]
DATABASES = [
    *(f"tests/integration/outbox/test_{name}.py" for name in ("append", "database", "leases", "maintenance", "parked")),
    "tests/contract/test_mariadb.py", "-k", "not sqlite",
]  # fmt: skip
BROKERS = ["tests/acceptance/test_end_to_end.py", "-k", "goes_through or rabbitmq"]
SEARCH = [
    "tests/contract/test_elasticsearch.py", "tests/contract/test_opensearch.py", "tests/spark/test_reading.py",
    "-k", "elasticsearch or opensearch or index or error_of_a_task",
]  # fmt: skip
ON_SERVERS = (CONTRACT, DATABASES, BROKERS, SEARCH)
SERVICE = [
    "tests/acceptance/test_wheel.py", "tests/acceptance/test_end_to_end.py", "-k", "wheel or goes_through or rabbitmq",
]  # fmt: skip
ON_PYTHONS = (["tests/unit"], SERVICE)


def succeeds(command: Sequence[str | Path], **environment: str) -> bool:
    """Run a command in the checkout; its output is shown."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=os.environ | environment, check=False)
    return done.returncode == 0


def on_servers() -> bool:
    """Provide the newest servers, show their versions, and run the tests."""
    provision.main(SERVERS)
    if reasons := list(filter(None, map(provision.missing, SERVERS))):
        sys.stderr.write("".join(f"{reason}\n" for reason in reasons))
        return False
    for tree, *command in VERSIONS:
        succeeds(debian_tree.within(tree, command))
    runs = [succeeds([sys.executable, *PYTEST, *tests], TEST_SERVERS="newest") for tests in ON_SERVERS]
    return all(runs)


def on_python(version: str) -> bool:
    """Provide a Python with all that is installed, show its version, and run the tests; True where none can be had."""
    try:
        python = interpreters.environment(version)
    except provision.CannotProvideError as reason:
        sys.stderr.write(f"SKIPPED: Python {version}: {reason}\n")
        return os.environ.get("CI") != "true"
    succeeds([python, "--version"])
    runs = [succeeds([python, *PYTEST, *tests]) for tests in ON_PYTHONS]
    return all(runs)


def main(arguments: Sequence[str]) -> int:
    """Run the parts that are named, or all; returns the exit status."""
    parts = {"servers": on_servers, **{version: lambda v=version: on_python(v) for version in interpreters.VERSIONS}}
    if unknown := [name for name in arguments if name not in parts]:
        sys.stderr.write(f"no such part: {', '.join(unknown)}; there are {', '.join(parts)}\n")
        return 2
    complete = [parts[name]() for name in arguments or parts]
    return 0 if all(complete) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
