"""An open transaction on PostgreSQL, under which each append becomes slower, is seen by doctor and metrics."""

from contextlib import closing
from uuid import uuid4

import psycopg2
import pytest
from psycopg2.extensions import ISOLATION_LEVEL_REPEATABLE_READ
from sqlalchemy.engine import make_url

from app.api.routes.metrics import _snapshots
from app.doctor import dependencies
from app.doctor.dependencies import check_old_snapshots
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.symptoms import OldSnapshots, read_old_snapshots
from tests import services
from tests.support.builders import event, migrated


def _state(database: Database) -> OldSnapshots:
    with database.reading() as connection:
        state = read_old_snapshots(connection)
    assert state is not None
    return state


def _dsn(url: str, name: str) -> str:
    parsed = make_url(url).set(drivername="postgresql").update_query_dict({"application_name": name})
    return parsed.render_as_string(hide_password=False)


def test_a_dump_that_is_open_is_named_with_the_old_versions_that_it_keeps(
    postgres_outbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(migrated(postgres_outbox)) as database:
        log = Log(database)
        log.append([[event("before")]])
        assert not list(check_old_snapshots(database))
        with closing(psycopg2.connect(_dsn(postgres_outbox, "pg_dump"))) as dump:
            dump.set_session(ISOLATION_LEVEL_REPEATABLE_READ, readonly=True)
            with dump.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM events")
            for number in range(60):
                log.append([[event(str(number))]])
            services.until(lambda: _state(database).old_versions >= 50)
            opened = _state(database)
            assert opened.age > 0
            assert "(pg_dump)" in opened.holder
            monkeypatch.setattr(dependencies, "_MAX_AGE", 0)
            [finding] = check_old_snapshots(database)
            assert (finding.subject, finding.grade) == ("database", "warning")
            assert "session" in finding.text
            assert "(pg_dump)" in finding.text
            assert "pg_basebackup" in finding.text
            samples = {sample.name: sample.value for metric in _snapshots(opened) for sample in metric.samples}
            assert samples["bucketwire_database_oldest_snapshot_age_seconds"] == opened.age / 1000
            assert samples["bucketwire_database_old_row_versions"] >= 50
        services.until(lambda: _state(database).holder == "")
        assert not list(check_old_snapshots(database))


def test_what_this_role_may_not_see_shows_by_the_versions_that_are_kept(
    postgres_outbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"role_{uuid4().hex[:8]}"
    parsed = make_url(postgres_outbox)
    with (
        closing(migrated(postgres_outbox)) as owner,
        closing(psycopg2.connect(_dsn(postgres_outbox, "report"))) as report,
    ):
        with owner.writing() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD '{services.PASSWORD}'")
            connection.exec_driver_sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        try:
            with closing(
                Database(parsed.set(username=role, password=services.PASSWORD).render_as_string(False))
            ) as limited:
                report.set_session(ISOLATION_LEVEL_REPEATABLE_READ)
                with report.cursor() as cursor:
                    cursor.execute("SELECT count(*) FROM events")
                for number in range(60):
                    Log(owner).append([[event(str(number))]])
                services.until(lambda: _state(limited).old_versions >= 50)
                assert _state(limited).holder == ""
                monkeypatch.setattr(dependencies, "_MAX_OLD_VERSIONS", 40)
                [finding] = check_old_snapshots(limited)
                assert "replication slot" in finding.text
        finally:
            with owner.writing() as connection:
                connection.exec_driver_sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_only_postgresql_keeps_old_versions_where_an_append_finds_them(outbox_url: str) -> None:
    with closing(migrated(outbox_url)) as database:
        with database.reading() as connection:
            state = read_old_snapshots(connection)
        assert (state is None) == (not outbox_url.startswith("postgresql"))
        assert not list(check_old_snapshots(database))
