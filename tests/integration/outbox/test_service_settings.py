"""`api sync_events`: stored, in force while workers run, and overridden by the variable."""

from __future__ import annotations

from app.config.api_settings import is_sync, sync_events
from app.config.arn import TargetId
from app.config.settings import Settings
from app.outbox.engine.database import Database
from tests.services import until
from tests.support import databases
from tests.support.builders import add_target, registry
from workers.delivery.pooled_target import TargetPool

pytestmark = databases.TWO


def window(pool: TargetPool, database: Database, name: str) -> int:
    return pool.target(registry(database).target(TargetId("webhook", name))).window


def test_a_stored_value_is_in_force_while_workers_run(database: Database) -> None:
    for name, own in (("plain", {}), ("own", {"sync": "on"}), ("never", {"sync": "off"})):
        add_target(database, name)
        target = TargetId("webhook", name)
        registry(database).put(target, registry(database).texts(registry(database).target(target)) | own)
    pool = TargetPool(registry(database), Settings.from_environ({}))
    assert [window(pool, database, name) for name in ("plain", "own", "never")] == [1000, 1, 1000]
    registry(database).put_api_settings({"sync_events": "on"})
    until(lambda: window(pool, database, "plain") == 1)
    assert [window(pool, database, name) for name in ("own", "never")] == [1, 1000]
    registry(database).put_api_settings({"sync_events": ""})
    assert registry(database).api_settings() == {}
    until(lambda: window(pool, database, "plain") == 1000)
    pool.close()


@databases.THREE
def test_the_variable_takes_precedence(database: Database) -> None:
    add_target(database, "plain")
    registry(database).put_api_settings({"sync_events": "on"})
    for variable, expected in (("off", 1000), ("on", 1), ("", 1)):
        pool = TargetPool(registry(database), Settings.from_environ({"MINIO_API_SYNC_EVENTS": variable}))
        assert window(pool, database, "plain") == expected
        pool.close()
    assert sync_events("off", {"sync_events": "on"}) == ("off", "environment")
    assert sync_events("", {"sync_events": "on"}) == ("on", "stored")
    assert sync_events("", {}) == ("off", "default")
    assert [is_sync({"sync": text}, sync_events("on", {})) for text in ("", "on", "false", "maybe")] == [
        True, True, False, True,
    ]  # fmt: skip
