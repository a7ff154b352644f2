"""The registry: every type can be made, and making one loads no other's driver."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.config.declared_types import TYPES
from tests.contract.probes.registry import PROBES
from workers.targets import create

LOAD = """
import os, sys
from app.config import target_settings
from app.config.declared_types import TYPES
from workers.targets import create
for name in sys.argv[1:]:
    if os.fork() == 0:
        create(name, target_settings.load(name, TYPES[name].example)).close()
        print(name, *[one for one in ("redis", "psycopg2", "pymysql", "urllib3", "kafka") if one in sys.modules])
        sys.exit()
    assert os.wait()[1] == 0
"""
DRIVERS = {
    "redis": "redis",
    "postgresql": "psycopg2",
    "mysql": "pymysql",
    "webhook": "urllib3",
    "kafka": "kafka",
    "elasticsearch": "urllib3",
}


def test_every_type_has_a_place_in_the_contract_suite() -> None:
    assert {name.partition("-")[0] for name in PROBES} == set(TYPES)
    assert all(probe.type == name.partition("-")[0] for name, probe in PROBES.items())


def test_an_unknown_type_is_refused_with_those_there_are() -> None:
    with pytest.raises(LookupError, match=r"'redsi'; there are .*redis, sqs, webhook"):
        create("redsi", None)


def test_a_worker_loads_the_driver_of_what_it_serves_and_no_other() -> None:
    """Each in a child of a process that has loaded what they share."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *DRIVERS], capture_output=True, text=True, check=True, timeout=60
    )
    assert [line.split() for line in done.stdout.splitlines()] == [[name, driver] for name, driver in DRIVERS.items()]
