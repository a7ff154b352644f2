"""Schema, purge, history and targets on each database."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

import migrations
from app.config.arn import TargetId
from app.config.target_settings import BadSettings
from app.outbox import audit, migration, schema_version, tables
from app.outbox.admin.event_states import object_history
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.log.retention import purge
from app.outbox.registry import ReadOnlyTarget, TargetInUse
from tests.services import until
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from tests.support.service_processes import BUCKETWIRE
from workers.delivery.outcomes import DELIVERED, Rejected

pytestmark = databases.TWO

NIGHTLY = pytest.mark.nightly(
    "MariaDB, which commits each statement of a migration as MySQL does", when=lambda empty_url: empty_url == "mysql"
)


@databases.ALL
def test_migrations_go_up_down_and_up_again_and_match_the_models(empty_url: str) -> None:
    database = Database(empty_url)
    assert schema_version.current(database) is None
    migration.migrate(database, partitions=8)
    assert schema_version.current(database) == schema_version.head()
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": False})
        assert compare_metadata(context, tables.metadata) == []
        assert connection.execute(sa.select(tables.log_head.c.partitions)).scalar_one() == 8
    migration.migrate(database, partitions=99)
    migration.downgrade(database, "base")
    with database.engine.connect() as connection:
        assert set(sa.inspect(connection).get_table_names()) <= {"alembic_version"}
    migration.migrate(database)
    assert schema_version.current(database) == schema_version.head()
    database.close()


def test_a_migration_shortens_the_addresses_of_webhooks_in_older_entries_of_the_audit_log(empty_url: str) -> None:
    database = Database(empty_url)
    migration.migrate(database)
    migration.downgrade(database, "0008")
    lines = ["+ auth_token=*redacted*", "- endpoint=https://me:*redacted*@ntfy.sh/my-topic?a=b", "+ endpoint=http://h/"]
    with database.writing() as connection:
        for _ in range(3):
            audit.record(connection, "target.change", "target:webhook:a", {"origin": "api", "settings": lines})
        audit.record(connection, "target.change", "target:redis:a", {"settings": ["+ comment=- endpoint=http://h/x"]})
        audit.record(connection, "target.pause", "target:webhook:a", {"reason": "its + endpoint=http://h/x"})
    migration.migrate(database)
    *changes, other, paused = reversed(audit.entries(database, audit.AuditFilter(), limit=9))
    lines[1] = "- endpoint=https://ntfy.sh/*redacted*"
    assert [entry.details for entry in changes] == [{"origin": "api", "settings": lines}] * 3
    assert other.details == {"settings": ["+ comment=- endpoint=http://h/x"]}
    assert paused.details == {"reason": "its + endpoint=http://h/x"}
    database.close()


@databases.ALL
@NIGHTLY
@pytest.mark.parametrize("empty_url", ["postgresql", "mysql", "mariadb"], indirect=True)
def test_of_two_that_migrate_at_once_one_does_and_the_other_waits(empty_url: str, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "BUCKETWIRE_DATABASE_URL": empty_url, "BUCKETWIRE_DATA_DIR": str(tmp_path)}
    runs = [
        subprocess.Popen([BUCKETWIRE, "migrate"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    said = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    database = Database(empty_url)
    assert schema_version.current(database) == schema_version.head()
    database.close()


class _Killed(BaseException):
    """What ends a migration, as SIGKILL does."""


@databases.ALL
@NIGHTLY
@pytest.mark.parametrize("empty_url", ["mysql", "mariadb"], indirect=True)
def test_a_migration_that_was_killed_between_two_statements_is_made_again(empty_url: str) -> None:
    """These databases have committed a part of it by then; here after 1, 3, 6, 10, … statements."""
    database = Database(empty_url)
    left = 0

    def kill(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        nonlocal left
        if statement.lstrip().startswith(("ALTER TABLE", "CREATE ", "UPDATE ", "INSERT ")):
            left -= 1
            if left == 0:
                raise _Killed

    sa.event.listen(database.engine, "after_cursor_execute", kill)
    kills = 0
    while schema_version.current(database) != schema_version.head():
        left = kills = kills + 1
        with suppress(_Killed):
            migration.migrate(database)
    assert 5 < kills < 50
    sa.event.remove(database.engine, "after_cursor_execute", kill)
    migration.migrate(database)
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": False})
        assert compare_metadata(context, tables.metadata) == []
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.log_tail)).scalar_one() == 1
    database.close()


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_a_migration_that_waits_for_an_append_has_nothing_that_the_append_waits_for(empty_url: str) -> None:
    """Otherwise one of the two fails by a deadlock: under load a migration could never be made while the API runs."""
    database = Database(empty_url)
    migration.migrate(database)
    migration.downgrade(database, "0013")
    waits = sa.text("SELECT 1 FROM pg_locks WHERE relation = CAST('log_head' AS regclass) AND NOT granted")
    with ThreadPoolExecutor(1) as pool:
        with database.writing() as connection:
            connection.exec_driver_sql("UPDATE log_head SET last_seq = last_seq")  # as an append does first
            migrated = pool.submit(migration.migrate, database)
            until(lambda: connection.execute(waits).first(), 60)
            connection.execute(sa.select(tables.events.c.seq).limit(1)).all()
        migrated.result(60)
    assert schema_version.current(database) == schema_version.head()
    database.close()


def test_the_revisions_that_are_known_by_their_files_are_alembics() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert schema_version.revisions() == {script.revision for script in scripts.walk_revisions()}
    assert schema_version.head() == scripts.get_current_head()
    assert not schema_version.is_later(schema_version.head())
    assert schema_version.is_later("9999")


def test_purge_removes_only_what_is_old_and_done_with(database: Database) -> None:
    poison = event("poison")
    courier = Courier(
        database, add_target(database), ScriptedTarget(lambda one: Rejected("no") if one.id == poison.id else DELIVERED)
    )
    log = Log(database)
    log.append([[event(f"k{number}") for number in range(50)] + [poison]])
    assert purge(database, now_ms() + 1) == 0
    courier.run()
    log.append([[event(f"k{number}") for number in range(5)]])
    assert purge(database, now_ms() - 60_000) == 0
    assert purge(database, now_ms() + 1, batch_events=7) == 50
    with database.reading() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.events)).scalar_one() == 6
    assert courier.run().counts == {"delivered": 5}
    assert_counters_balance(database)


@databases.ALL
def test_an_objects_history_says_where_each_event_stands(database: Database) -> None:
    settled, poison, waiting = event("k"), event("k"), event("k")
    courier = Courier(
        database, add_target(database), ScriptedTarget(lambda one: Rejected("no") if one.id == poison.id else DELIVERED)
    )
    Log(database).append([[settled, poison, event("other")]])
    courier.run()
    Log(database).append([[waiting]])
    history = object_history(database, "images", "k").events
    assert [entry.event_id for entry in history] == [settled.id, poison.id, waiting.id]
    assert [entry.delivery_states[0].state for entry in history] == ["settled", "dead", "pending"]
    assert history[0].record == settled.record
    assert object_history(database, "images", "K").events == []


def test_bad_settings_change_nothing(database: Database) -> None:
    target = add_target(database, endpoint="http://127.0.0.1:9/one")
    with pytest.raises(BadSettings):
        registry(database).put(target, {"endpoint": "ftp://nowhere"})
    assert registry(database).target(target).values["endpoint"] == "http://127.0.0.1:9/one"


def test_secrets_are_sealed_in_the_table_and_open_for_a_worker(database: Database) -> None:
    target = add_target(database, auth_token="s3cr3t-t0ken")
    with database.reading() as connection:
        assert "s3cr3t" not in connection.execute(sa.select(tables.targets.c.settings)).scalar_one()
    settings = registry(database).settings(registry(database).target(target))
    assert getattr(settings, "auth_token") == "s3cr3t-t0ken"  # noqa: B009 - one type of many


def test_a_target_in_use_is_removed_only_by_force(database: Database) -> None:
    target = add_target(database)
    Log(database).append([[event()]])
    with pytest.raises(TargetInUse, match=r"1 rule, 1 undelivered event"):
        registry(database).remove(target)
    registry(database).remove(target, force=True)
    assert registry(database).targets() == []
    again = add_target(database)
    assert Courier(database, again).run().counts == {}


@databases.ALL
def test_targets_of_the_environment_follow_it_and_one_broken_leaves_the_others(database: Database) -> None:
    counters = registry(database)
    good, bad = TargetId("webhook", "good"), TargetId("webhook", "bad")
    counters.sync_environment(
        {good: {"endpoint": "http://127.0.0.1:9/"}, bad: {"endpoint": "nowhere"}}, {bad: "endpoint: no URL"}
    )
    assert {entry.target: entry.problem for entry in counters.targets()} == {bad: "endpoint: no URL", good: ""}
    with pytest.raises(ReadOnlyTarget):
        counters.put(good, {"endpoint": "http://127.0.0.1:10/"})
    counters.sync_environment({bad: {"endpoint": "http://127.0.0.1:9/"}}, {})
    assert {entry.target: (entry.problem, entry.enabled) for entry in counters.targets()} == {
        bad: ("", True),
        good: ("", False),
    }
    off = {good: {"enable": "off", "endpoint": "http://127.0.0.1:9/"}}
    counters.sync_environment(off, {})
    with pytest.raises(ReadOnlyTarget):  # the environment names it, and has it disabled
        counters.put(good, {"endpoint": "http://127.0.0.1:10/"})
    counters.sync_environment({}, {})
    counters.put(good, {"endpoint": "http://127.0.0.1:10/"})  # the environment does not name it any more
    assert (counters.target(good).origin, counters.target(good).enabled) == ("stored", True)
