"""The registry: every type can be made, and making one loads no other's driver."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.config.targets.registry import TYPES
from tests.contract.probes.registry import PROBES
from workers.targets import create

LOAD = """
import sys
from app.config import target_settings
from app.config.targets.registry import TYPES
from workers.targets import create
create(sys.argv[1], target_settings.load(sys.argv[1], TYPES[sys.argv[1]].example)).close()
print(*[name for name in ("redis", "psycopg2", "pymysql", "urllib3", "kafka") if name in sys.modules])
"""


def test_every_type_has_a_place_in_the_contract_suite() -> None:
    assert {name.partition("-")[0] for name in PROBES} == set(TYPES)
    assert all(probe.type == name.partition("-")[0] for name, probe in PROBES.items())


def test_an_unknown_type_is_refused_with_those_there_are() -> None:
    with pytest.raises(LookupError, match=r"'redsi'; there are .*redis, sqs, webhook"):
        create("redsi", None)


@pytest.mark.parametrize(
    ("type_", "driver"),
    [
        ("redis", "redis"),
        ("postgresql", "psycopg2"),
        ("mysql", "pymysql"),
        ("webhook", "urllib3"),
        ("kafka", "kafka"),
        ("elasticsearch", "urllib3"),
    ],
)
def test_a_worker_loads_the_driver_of_what_it_serves_and_no_other(type_: str, driver: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOAD, type_], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [driver]
