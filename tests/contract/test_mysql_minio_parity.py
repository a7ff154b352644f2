"""A real MinIO writes into MySQL and MariaDB, we write the same events beside it, and the rows are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from app.events.model import Effect, Event
from tests import services
from tests.contract.probes.mysql import Access, Namespace
from tests.support import minio_life
from workers.delivery.outcomes import DELIVERED
from workers.targets.payloads import compatible_effect

KEYS = (
    "zero.bin",
    "dir a/myphoto+é &<1>.jpg",
    "100%.txt",
    "emoji-\U0001f600.txt",
    "quote'double\"back.txt",
    "ends with a space ",
    "/".join("k" * 200 for _ in range(4)),
)


@dataclass
class Stage:
    """MinIO, and where it writes `direct_n` and `direct_a`; `reference` gets the same over a webhook."""

    minio: services.MinIO
    reference: services.Receiver
    genuine: Namespace
    maria: Access

    def emitted(self) -> list[Event]:
        """Every event so far, in the order of its arrival."""
        found = minio_life.emitted(self.reference)
        return [event._replace(effect=compatible_effect(event)) for event in found]

    def arrives(self, count: int) -> None:
        """Return when this many events, and all that came since, are everywhere: MinIO could mix their order up."""
        services.until(lambda: len(self.emitted()) >= count, 20, what=f"event {count} at the webhook")
        services.until(self._is_everywhere, 20, what=f"event {count} in the tables")

    def _is_everywhere(self) -> bool:
        emitted = self.emitted()
        rows: dict[str, Any] = {}
        for event in emitted:
            rows.pop(event.path, None)
            if event.effect is not Effect.REMOVE:
                rows[event.path] = {"Records": [json.loads(event.record)]}
        for probe in (self.genuine, self.maria):
            held = probe.read("SELECT key_name, value FROM direct_n")
            if rows != {key: json.loads(value) for key, value in held}:
                return False
            if probe.read("SELECT count(*) FROM direct_a") != [(len(emitted),)]:
                return False
        return True


@pytest.fixture(scope="module")
def stage(mysql_server: services.MySQL, mariadb_server: services.MariaDB) -> Iterator[Stage]:
    genuine, maria = Namespace(mysql_server), Access(mariadb_server)
    targets = {
        "N": {"DSN_STRING": genuine.dsn("parseTime=true"), "TABLE": "direct_n", "FORMAT": "namespace"},
        "A": {"DSN_STRING": genuine.dsn("loc=Asia%2FTokyo"), "TABLE": "direct_a", "FORMAT": "access"},
        "M": {"DSN_STRING": maria.dsn(), "TABLE": "direct_a", "FORMAT": "access"},
        "O": {"DSN_STRING": maria.dsn(), "TABLE": "direct_n", "FORMAT": "namespace"},
    }
    ours = Namespace(mariadb_server).target(table="direct_n")  # which MinIO cannot create there, but uses
    ours.open()
    ours.close()
    env = {
        f"MINIO_NOTIFY_MYSQL_{key}_{name}": value
        for name, values in targets.items()
        for key, value in (values | {"ENABLE": "on"}).items()
    }
    with (
        services.receiver() as reference,
        services.minio(webhooks={"W": (reference.url, "")}, extra_env=env) as minio,
    ):
        made = Stage(minio, reference, genuine, maria)
        names = ("W:webhook", "N:mysql", "A:mysql", "M:mysql", "O:mysql")
        minio_life.live(minio, names, KEYS, made.arrives)
        yield made
    genuine.ask("DROP TABLE IF EXISTS direct_n, direct_a, ours_n, ours_a")
    maria.ask("DROP TABLE IF EXISTS direct_n, direct_a, ours_n, ours_a")


def written(stage: Stage, probe: Namespace | Access, **changes: str) -> None:
    """Every event, through our target in one batch and then, as after a crash, the later half once more."""
    with closing(probe.target(policy="compatible", **changes)) as target:
        emitted = stage.emitted()
        assert set(target.deliver(emitted, 100)) == {DELIVERED}
        if changes["table"] == "ours_n":
            assert set(target.deliver(emitted[len(emitted) // 2 :], 1)) == {DELIVERED}


@pytest.mark.parametrize("server", ["genuine", "maria"])
def test_a_mirror_has_the_same_rows_under_the_same_hashes(stage: Stage, server: str) -> None:
    probe = Namespace(getattr(stage, server).server)
    written(stage, probe, table="ours_n")
    rows = "SELECT key_name, key_hash, CAST(value AS CHAR) FROM {} ORDER BY key_hash"
    ours, direct = (probe.ask(rows.format(name)) for name in ("ours_n", "direct_n"))
    assert len(direct) == 6
    assert ours == direct


def test_a_table_of_minios_own_is_written_on_as_minio_would(stage: Stage) -> None:
    before = stage.genuine.ask("SELECT * FROM direct_n ORDER BY key_hash")
    written(stage, stage.genuine, table="direct_n")
    assert stage.genuine.ask("SELECT * FROM direct_n ORDER BY key_hash") == before


@pytest.mark.parametrize(("server", "zone"), [("genuine", "loc=Asia%2FTokyo"), ("maria", "")])
def test_a_journal_has_the_same_rows_in_the_same_order(stage: Stage, server: str, zone: str) -> None:
    probe: Access = Access(getattr(stage, server).server)
    probe.ask("DROP TABLE IF EXISTS ours_a")  # what an earlier run of the test left
    written(stage, probe, table="ours_a", dsn_string=probe.dsn(*filter(None, [zone])))
    ours, direct = (probe.ask(f"SELECT event_time, event_data FROM {name}") for name in ("ours_a", "direct_a"))
    assert len(direct) == len(stage.emitted())
    assert ours == direct
