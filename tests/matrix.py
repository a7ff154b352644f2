"""The newest servers, beside those of `make test`: `make matrix`.

They are Debian's newest of Valkey, PostgreSQL, MySQL, MariaDB, RabbitMQ, NATS and Mosquitto, unpacked on this Debian;
what databases, brokers and targets are asked for most runs against them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import provision
from tests.support import debian_tree

ROOT = Path(__file__).parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", "-p", "no:cacheprovider")
VERSIONS = (
    (provision.NEWEST, "valkey-server", "--version"),
    (provision.NEWEST, "sh", "-c", "/usr/lib/postgresql/*/bin/postgres --version"),
    (provision.NEWEST, "mariadbd", "--version"),
    (provision.NEWEST_MYSQL, "mysqld", "--version"),
    (provision.NEWEST, "nats-server", "--version"),
    (provision.NEWEST, "sh", "-c", "mosquitto -h | head -n 1"),
    (provision.NEWEST, "sh", "-c", "basename /usr/lib/rabbitmq/lib/rabbitmq_server-*"),
)
# What a server of another version could answer otherwise: creating, delivering, refusals, logins, TLS, being killed.
TARGETS = "amqp or mysql or nats-core or nats-jetstream or mqtt-qos1 or mqtt-5 or redis or postgresql"
ASKED = "opens or certificate or password or real_minio or poison_event or killed_server"
CONTRACT = ["tests/contract/test_target_contract.py", "-k", f"({TARGETS}) and ({ASKED})"]
DATABASES = [
    *(f"tests/integration/outbox/test_{name}.py" for name in ("append", "database", "leases", "maintenance", "parked")),
    "tests/contract/test_mariadb.py", "-k", "not sqlite",
]  # fmt: skip
BROKERS = ["tests/acceptance/test_end_to_end.py", "-k", "goes_through or rabbitmq"]


def succeeds(command: Sequence[str | Path], **environment: str) -> bool:
    """Run a command in the checkout; its output is shown."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=os.environ | environment, check=False)
    return done.returncode == 0


def main() -> int:
    """Provide the servers, show their versions, and run the tests; returns the exit status."""
    provision.main(["newest", "newest_mysql"])
    for reason in filter(None, map(provision.missing, ("newest", "newest_mysql"))):
        sys.stderr.write(f"{reason}\n")
        return 1
    for tree, *command in VERSIONS:
        succeeds(debian_tree.within(tree, command))
    runs = [succeeds([*PYTEST, *tests], TEST_SERVERS="newest") for tests in (CONTRACT, DATABASES, BROKERS)]
    return 0 if all(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
