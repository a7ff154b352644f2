"""What is PostgreSQL's own: tables as they are found, SQLSTATEs, and what a transaction promises."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.events.model import Effect, Event
from tests import services
from tests.contract.probes import fixtures
from tests.contract.probes.base import LIMIT, TIMEOUT, attempt
from tests.contract.probes.postgresql import Access, Namespace
from tests.support import sample_events, sql_cases
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Rejected, Unavailable
from workers.targets import payloads
from workers.targets.base import TargetUnavailable

running = fixtures.running(Namespace)


@pytest.fixture
def postgres(running: Namespace) -> Namespace:
    running.table = "bucketevents"
    running.renew()
    return running


@pytest.fixture
def journal(postgres: Namespace) -> Access:
    """The same server, with a table of all events."""
    access = Access.__new__(Access)
    access.server, access.table = postgres.server, postgres.table
    return access


# --- tables


def test_the_tables_are_created_as_minio_creates_them(postgres: Namespace, journal: Access) -> None:
    columns = (
        "SELECT column_name, data_type, character_maximum_length, is_nullable FROM information_schema.columns "
        "WHERE table_name = 'bucketevents' ORDER BY ordinal_position"
    )
    postgres.target().open()
    assert postgres.ask(columns) == [("key", "character varying", None, "NO"), ("value", "jsonb", None, "YES")]
    indexes = postgres.ask("SELECT indexdef FROM pg_indexes WHERE tablename = 'bucketevents'")
    assert indexes == [("CREATE UNIQUE INDEX bucketevents_pkey ON public.bucketevents USING btree (key)",)]
    postgres.renew()
    journal.target().open()
    assert journal.ask(columns) == [
        ("event_time", "timestamp with time zone", None, "NO"),
        ("event_data", "jsonb", None, "YES"),
    ]
    assert journal.ask("SELECT 1 FROM pg_indexes WHERE tablename = 'bucketevents'") == []


def test_a_table_that_minio_left_is_taken_over_with_its_rows(postgres: Namespace) -> None:
    postgres.ask("CREATE TABLE bucketevents (key VARCHAR PRIMARY KEY, value JSONB)")
    postgres.ask(
        """INSERT INTO bucketevents VALUES ('images/old', '{"Records":[]}'), ('images/new', '{"Records":[]}')"""
    )
    event = sample_events.put("new")
    assert postgres.delivered([event]) == [DELIVERED]
    held = dict(postgres.held())
    assert held["images/old"] == '{"Records": []}'
    assert postgres.same(held["images/new"], payloads.records(event))


def test_opening_a_large_table_reads_none_of_its_rows(postgres: Namespace) -> None:
    postgres.ask("CREATE TABLE bucketevents (key VARCHAR PRIMARY KEY, value JSONB)")
    postgres.ask("INSERT INTO bucketevents SELECT 'images/' || n, '{}' FROM generate_series(1, 1000) n")
    scans = "SELECT seq_scan + idx_scan FROM pg_stat_user_tables WHERE relname = 'bucketevents'"
    services.until(lambda: postgres.ask("SELECT n_tup_ins FROM pg_stat_user_tables") == [(1000,)])
    before = postgres.ask(scans)
    target = postgres.target()
    target.open()
    target.close()
    gone = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'bucketwire'"
    services.until(lambda: not postgres.ask(gone))  # a backend reports its statistics before it ends
    assert postgres.ask(scans) == before


@pytest.mark.parametrize(
    ("setting", "stored"),
    [("Events", "events"), ('"Events"', "Events"), ('"we ""ird; DROP"', 'we "ird; DROP'), ("_ünïcode$1", "_ünïcode$1")],
)
def test_a_table_is_called_what_postgresql_would_call_it(postgres: Namespace, setting: str, stored: str) -> None:
    postgres.table = stored
    postgres.renew()
    assert postgres.delivered([sample_events.put("a")], table=setting) == [DELIVERED]
    assert postgres.delivered([sample_events.put("a")], table=setting) == [DELIVERED]
    assert postgres.ask("SELECT 1 FROM pg_tables WHERE tablename = $name$" + stored + "$name$") == [(1,)]
    postgres.renew()


@pytest.mark.parametrize("kind", ["json", "text", "jsonb NOT NULL"])
def test_a_value_column_of_another_type_is_written_too(postgres: Namespace, kind: str) -> None:
    postgres.ask(f"CREATE TABLE bucketevents (key text UNIQUE, value {kind}, at timestamptz NOT NULL DEFAULT now())")
    batch = [sample_events.put("a", version="v1"), sample_events.put("b"), sample_events.delete("b")]
    assert postgres.delivered(batch) == [DELIVERED] * 3
    assert postgres.delivered([sample_events.delete_version("a", "v1")]) == [DELIVERED]
    assert postgres.held() == []


@pytest.mark.parametrize("kind", ["varchar(2000)", "char(2000)", "short"])
def test_a_value_that_is_too_long_for_its_column_is_never_cut(postgres: Namespace, kind: str) -> None:
    postgres.ask("CREATE DOMAIN short AS varchar(2000)")
    try:
        postgres.ask(f"CREATE TABLE bucketevents (key text UNIQUE, value {kind})")
        batch = [sample_events.put("a"), sample_events.put("long", metadata="x" * 5000), sample_events.put("b")]
        outcomes = postgres.delivered(batch)
        held = dict(postgres.held())
    finally:
        postgres.renew()
        postgres.ask("DROP DOMAIN short")
    assert [type(outcome) for outcome in outcomes] == [type(DELIVERED), Rejected, type(DELIVERED)]
    assert "22001" in str(outcomes[1])
    assert held.keys() == {batch[0].path, batch[2].path}


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE TABLE bucketevents (key char(300) PRIMARY KEY, value jsonb)",
        "CREATE TABLE bucketevents (key name PRIMARY KEY, value jsonb)",
        "CREATE TABLE bucketevents (key text COLLATE folding PRIMARY KEY, value jsonb)",
        "CREATE TABLE bucketevents (key text, value jsonb); CREATE UNIQUE INDEX ON bucketevents (key COLLATE folding)",
    ],
    ids=["char", "name", "collation", "collation of the index"],
)
def test_a_mirror_in_which_two_keys_are_one_is_refused(postgres: Namespace, ddl: str) -> None:
    postgres.ask("CREATE COLLATION folding (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    try:
        postgres.ask(ddl)
        with pytest.raises(TargetUnavailable, match="takes some different values of key for the same") as caught:
            postgres.target().open()
        if "INDEX" not in ddl:
            postgres.ask(f"ALTER TABLE bucketevents {caught.value.reason.partition('ALTER TABLE … ')[2]}")
            assert postgres.delivered([sample_events.put("a"), sample_events.put("A")]) == [DELIVERED] * 2
            assert len(postgres.held()) == 2
    finally:
        postgres.renew()
        postgres.ask("DROP COLLATION folding")


def test_a_table_of_the_other_format_is_refused(postgres: Namespace, journal: Access) -> None:
    journal.target().open()
    with pytest.raises(TargetUnavailable, match="no column key, which format namespace needs; it has event_time"):
        postgres.target().open()


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE TABLE bucketevents (key varchar, value jsonb)",
        "CREATE TABLE bucketevents (key varchar, value jsonb, UNIQUE (key, value))",
        "CREATE TABLE bucketevents (key text, value jsonb); CREATE UNIQUE INDEX ON bucketevents (key) WHERE key > 'a'",
        "CREATE TABLE bucketevents (key text, value jsonb); CREATE UNIQUE INDEX ON bucketevents (lower(key))",
    ],
)
def test_a_mirror_without_a_unique_key_is_refused_with_the_remedy(postgres: Namespace, ddl: str) -> None:
    postgres.ask(ddl)
    with pytest.raises(TargetUnavailable, match="no unique index on key alone") as caught:
        postgres.target().open()
    remedy = caught.value.reason.partition("ALTER TABLE … ")[2]
    assert remedy == 'ADD PRIMARY KEY ("key")'
    postgres.ask(f"ALTER TABLE bucketevents {remedy}")
    assert postgres.delivered([sample_events.put("a")]) == [DELIVERED]


def test_a_unique_key_that_is_deferrable_does_not_do(postgres: Namespace) -> None:
    postgres.ask("CREATE TABLE bucketevents (key varchar UNIQUE DEFERRABLE, value jsonb)")
    with pytest.raises(TargetUnavailable, match="no unique index on key alone"):
        postgres.target().open()


def test_a_column_that_no_event_can_fill_is_the_tables_fault_and_not_the_events(postgres: Namespace) -> None:
    target = postgres.target()
    target.open()
    postgres.ask("ALTER TABLE bucketevents ADD owner text NOT NULL")
    (outcome,) = attempt(target, [sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    with pytest.raises(TargetUnavailable, match="requires a value for owner"):
        target.open()
    postgres.ask("ALTER TABLE bucketevents ALTER owner SET DEFAULT ''")
    assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
    target.close()


@pytest.mark.parametrize("repetition", range(3))
def test_many_workers_may_create_the_table_at_once(postgres: Namespace, repetition: int) -> None:
    sql_cases.many_workers_may_create_the_table_at_once(postgres)


def test_a_table_that_vanished_is_unavailable_once_and_then_created_again(postgres: Namespace) -> None:
    with postgres.opened() as target:
        postgres.renew()
        (outcome,) = attempt(target, [sample_events.put("a")], 1)
        assert isinstance(outcome, Unavailable)
        assert "42P01" in outcome.reason
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def test_a_user_may_write_without_the_right_to_create(postgres: Namespace) -> None:
    postgres.ask("CREATE ROLE writer LOGIN PASSWORD 'pass'")
    dsn = postgres.server.dsn().replace(
        f"user={services.USER} password={services.PASSWORD}", "user=writer password=pass"
    )
    try:
        with pytest.raises(TargetUnavailable, match="permission denied"):
            postgres.target(connection_string=dsn).open()
        postgres.ask("CREATE TABLE bucketevents (key VARCHAR PRIMARY KEY, value JSONB)")
        postgres.ask("GRANT SELECT, INSERT, UPDATE, DELETE ON bucketevents TO writer")
        batch = [sample_events.put("a"), sample_events.delete("b"), sample_events.delete_version("c", "v")]
        assert postgres.delivered(batch, connection_string=dsn) == [DELIVERED] * 3
    finally:
        postgres.ask("DROP OWNED BY writer; DROP ROLE writer")


# --- what is refused


def test_a_poison_event_is_rejected_with_the_servers_words(postgres: Namespace, journal: Access) -> None:
    for probe in (postgres, journal):
        probe.renew()
        (outcome,) = probe.delivered([sample_events.poisoned("a")])
        assert isinstance(outcome, Rejected)
        assert "\\u0000 cannot be converted to text" in outcome.reason
        assert "22P05" in outcome.reason


def test_a_name_with_a_null_character_is_rejected_alone(postgres: Namespace) -> None:
    good = sample_events.put("a")
    outcomes = postgres.delivered([sample_events.put("nul\0l"), good, sample_events.delete("nul\0l")])
    assert outcomes[1] == DELIVERED
    for outcome in (outcomes[0], outcomes[2]):
        assert isinstance(outcome, Rejected)
        assert "U+0000" in outcome.reason
    assert [path for path, _ in postgres.held()] == ["images/a"]


def test_a_key_too_long_for_the_index_is_rejected_alone(postgres: Namespace) -> None:
    long = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=6000))
    outcomes = postgres.delivered([sample_events.put("a"), sample_events.put(long), sample_events.put("b")])
    assert [type(outcome) for outcome in outcomes] == [type(DELIVERED), Rejected, type(DELIVERED)]
    assert isinstance(outcomes[1], Rejected)
    assert "54000" in outcomes[1].reason


def test_a_batch_of_nothing_but_poison_ends(journal: Access) -> None:
    outcomes = journal.delivered([sample_events.poisoned(f"object-{number}") for number in range(300)])
    assert {type(outcome) for outcome in outcomes} == {Rejected}


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE bucketevents ADD CHECK (value #>> '{Records,0,s3,object,size}' <> '666')",
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           IF NEW.value #>> '{Records,0,s3,object,size}' = '666' THEN RAISE 'no beasts'; END IF; RETURN NEW; END $$;
           CREATE TRIGGER refuse BEFORE INSERT ON bucketevents FOR EACH ROW EXECUTE FUNCTION refuse()""",
        """CREATE TABLE allowed (size text PRIMARY KEY);
           INSERT INTO allowed SELECT n::text FROM generate_series(1, 99) n;
           ALTER TABLE bucketevents ADD size text GENERATED ALWAYS AS (value #>> '{Records,0,s3,object,size}') STORED;
           ALTER TABLE bucketevents ADD FOREIGN KEY (size) REFERENCES allowed DEFERRABLE INITIALLY DEFERRED""",
    ],
    ids=["check", "trigger", "deferred foreign key"],
)
def test_the_tables_own_rules_reject_one_event_alone(postgres: Namespace, ddl: str) -> None:
    postgres.target().open()
    postgres.ask(ddl)
    try:
        made = [sample_events.put(f"object-{number}", number=number + 1) for number in range(20)]
        outcomes = postgres.delivered([*made[:7], sample_events.put("object-beast", number=666), *made[7:]])
    finally:
        postgres.ask("DROP FUNCTION IF EXISTS refuse CASCADE; DROP TABLE IF EXISTS allowed CASCADE")
    assert [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Rejected)] == [7]
    assert set(outcomes[:7] + outcomes[8:]) == {DELIVERED}
    assert len(postgres.held()) == 20


DISCARDS = """CREATE FUNCTION discard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;
    CREATE TRIGGER discard BEFORE {moment} ON bucketevents FOR EACH ROW EXECUTE FUNCTION discard()"""


@pytest.mark.parametrize("kind", [Namespace, Access])
@pytest.mark.parametrize("moment", ["INSERT", "INSERT OR UPDATE"])
def test_a_row_that_a_trigger_discards_is_not_delivered(
    postgres: Namespace, journal: Access, kind: type[Namespace], moment: str
) -> None:
    probe = postgres if kind is Namespace else journal
    beast = "value" if kind is Namespace else "event_data"
    made = [sample_events.put(f"object-{number}", number=number + 1) for number in range(5)]
    hidden = sample_events.put("object-beast", number=666)
    probe.target().open()
    probe.ask(
        DISCARDS.format(
            moment=moment,
            body=f"IF NEW.{beast}::text LIKE '%beast%' THEN RETURN NULL; END IF; RETURN NEW;",
        )
    )
    try:
        outcomes = probe.delivered([*made[:3], hidden, *made[3:]])
        alone = probe.delivered([hidden])
    finally:
        probe.ask("DROP FUNCTION discard CASCADE")
    assert [index for index, outcome in enumerate(outcomes) if outcome != DELIVERED] == [3]
    assert isinstance(outcomes[3], Rejected)
    assert "the table has kept 0 of 1 rows" in outcomes[3].reason
    assert isinstance(alone[0], Unavailable)
    assert len(probe.held()) == 5


@pytest.mark.parametrize(
    "ddl",
    [
        DISCARDS.format(moment="DELETE", body="IF OLD.key LIKE '%beast%' THEN RETURN NULL; END IF; RETURN OLD;"),
        "CREATE RULE stays AS ON DELETE TO bucketevents WHERE old.key LIKE '%beast%' DO INSTEAD NOTHING",
        """ALTER TABLE bucketevents ENABLE ROW LEVEL SECURITY;
           CREATE POLICY written ON bucketevents TO writer USING (true);
           CREATE POLICY kept ON bucketevents AS RESTRICTIVE FOR DELETE TO writer USING (key NOT LIKE '%beast%')""",
    ],
    ids=["trigger", "rule", "policy"],
)
@pytest.mark.parametrize("version", ["", "v"])
def test_a_row_that_is_kept_from_being_deleted_is_not_delivered(postgres: Namespace, ddl: str, version: str) -> None:
    keys = ["a", "b", "beast", "c"]
    assert set(postgres.delivered([sample_events.put(key, version=version) for key in keys])) == {DELIVERED}
    postgres.ask("DROP ROLE IF EXISTS writer; CREATE ROLE writer LOGIN PASSWORD 'pass'")
    postgres.ask("GRANT ALL ON bucketevents TO writer; " + ddl)
    dsn = f"host={services.LOOPBACK} port={postgres.server.port} user=writer password=pass dbname=postgres"

    def removed(key: str) -> Event:
        return sample_events.delete_version(key, version) if version else sample_events.delete(key)

    try:
        outcomes = postgres.delivered([removed("absent"), *map(removed, keys)], connection_string=dsn)
        alone = postgres.delivered([removed("beast"), sample_events.put("new")], connection_string=dsn)
    finally:
        postgres.renew()
        postgres.ask("DROP FUNCTION IF EXISTS discard CASCADE; DROP ROLE writer")
    assert [type(outcome) for outcome in outcomes] == [type(DELIVERED)] * 3 + [Rejected, type(DELIVERED)]
    assert "1 of the deleted rows are still in the table" in str(outcomes[3])
    assert [type(outcome) for outcome in alone] == [Unavailable, type(DELIVERED)]


def test_a_row_that_is_the_same_already_or_is_written_elsewhere_by_a_trigger_is_delivered(
    postgres: Namespace, journal: Access
) -> None:
    event = sample_events.put("a")
    assert postgres.delivered([event]) == [DELIVERED]
    postgres.ask(
        "CREATE TRIGGER same BEFORE UPDATE ON bucketevents FOR EACH ROW "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    assert postgres.delivered([event, sample_events.put("b")]) == [DELIVERED] * 2
    postgres.renew()
    journal.target().open()
    journal.ask("CREATE TABLE later () INHERITS (bucketevents)")
    journal.ask(DISCARDS.format(moment="INSERT", body="INSERT INTO later VALUES (NEW.*); RETURN NULL;"))
    try:
        assert journal.delivered([event, sample_events.put("b")]) == [DELIVERED] * 2
        assert len(journal.held()) == 2
    finally:
        journal.ask("DROP FUNCTION discard CASCADE; DROP TABLE later")


def test_any_mix_with_poison_leaves_what_its_events_leave_one_by_one(postgres: Namespace) -> None:
    sql_cases.a_mix_leaves_what_its_events_leave_one_by_one(postgres, rounds=15)


def test_a_version_is_removed_only_while_the_row_describes_it(postgres: Namespace) -> None:
    sql_cases.a_version_is_removed_only_while_the_row_describes_it(postgres)


# --- transactions, times and connections


def test_a_batch_is_one_transaction(journal: Access) -> None:
    assert set(journal.delivered([sample_events.put("a") for _ in range(100)], 100)) == {DELIVERED}
    assert journal.ask("SELECT count(DISTINCT xmin::text) FROM bucketevents") == [(1,)]


def test_the_time_column_holds_the_records_time_to_the_millisecond(journal: Access) -> None:
    event = sample_events.put("a")
    moved = Event(event.id, event.name, "b", "k", "", "", 1_795_221_236_082, event.record, Effect.NONE)
    assert journal.delivered([moved]) == [DELIVERED]
    text = "SELECT to_char(event_time AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') FROM bucketevents"
    assert journal.ask(text) == [("2026-11-21 00:33:56.082000",)]


@pytest.mark.parametrize(("chosen", "used"), [("off", "on"), ("remote_apply", "remote_apply"), ("local", "local")])
def test_a_commit_is_never_answered_before_it_is_on_disk(postgres: Namespace, chosen: str, used: str) -> None:
    postgres.target().open()
    postgres.ask(
        f"""ALTER ROLE {services.USER} SET synchronous_commit = {chosen};
            CREATE TABLE seen (mode text);
            CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;
            CREATE TRIGGER look BEFORE INSERT ON bucketevents FOR EACH ROW EXECUTE FUNCTION look()"""
    )
    try:
        assert postgres.delivered([sample_events.put("a")]) == [DELIVERED]
        assert postgres.ask("SELECT mode FROM seen") == [(used,)]
    finally:
        postgres.ask(
            f"ALTER ROLE {services.USER} RESET synchronous_commit; DROP TABLE seen; DROP FUNCTION look CASCADE"
        )


def test_what_a_synchronous_standby_was_not_waited_for_is_not_delivered(postgres: Namespace) -> None:
    """Somebody has ended the wait: PostgreSQL answers COMMIT, with a warning."""
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%COMMIT'"
    event = sample_events.put("a")
    postgres.ask(f"ALTER ROLE {services.USER} SET client_min_messages = error")
    with postgres.opened(timeout="60s") as target, ThreadPoolExecutor(1) as thread:
        standby(postgres, "nobody")
        try:
            delivering = thread.submit(attempt, target, [event], 1)
            services.until(lambda: postgres.ask(waiting) != [], 50, what="a COMMIT that waits")
            postgres.ask(f"SELECT pg_cancel_backend(pid) FROM ({waiting}) AS waiting")
            outcome = delivering.result(60)[0]
        finally:
            standby(postgres, "")
            postgres.ask(f"ALTER ROLE {services.USER} RESET client_min_messages")
        assert isinstance(outcome, Unavailable)
        assert "standby" in outcome.reason
        assert list(target.deliver([event], 1)) == [DELIVERED]


def standby(postgres: Namespace, name: str) -> None:
    """Have the server wait for this standby from now on."""
    with postgres.server.connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        cursor.execute("SELECT pg_reload_conf()")
    services.until(lambda: postgres.ask("SHOW synchronous_standby_names") == [(name,)], what="the setting")


def test_a_locked_table_is_unavailable_within_the_time_limit(postgres: Namespace) -> None:
    with postgres.opened() as target:
        batch = [sample_events.put("a"), sample_events.put("a")]
        with postgres.server.connection() as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN; LOCK TABLE bucketevents")
            began = time.monotonic()
            outcomes = list(target.deliver(batch, 1))
            assert TIMEOUT <= time.monotonic() - began < LIMIT
        assert isinstance(outcomes[0], Unavailable)
        assert "57014" in outcomes[0].reason
        assert outcomes[1] == NOT_ATTEMPTED
        assert list(target.deliver(batch, 1)) == [DELIVERED] * 2


def test_a_server_that_takes_no_writes_is_unavailable(postgres: Namespace) -> None:
    postgres.target().open()
    read_only = f"{postgres.server.dsn()} options='-c default_transaction_read_only=on'"
    (outcome,) = attempt(postgres.target(connection_string=read_only), [sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert "25006" in outcome.reason


def test_a_connection_that_the_server_closed_meanwhile_costs_nothing(postgres: Namespace) -> None:
    with postgres.opened() as target:
        ours = "FROM pg_stat_activity WHERE application_name = 'bucketwire'"
        assert postgres.ask(f"SELECT pg_terminate_backend(pid) {ours}") == [(True,)]
        services.until(lambda: not postgres.ask(f"SELECT 1 {ours}"))
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def test_a_url_and_the_old_separate_keys_connect_as_well(postgres: Namespace) -> None:
    server = postgres.server
    url = f"postgresql://{services.USER}:{services.PASSWORD}@{services.LOOPBACK}:{server.port}/postgres"
    separate = {
        "connection_string": "",
        "host": services.LOOPBACK,
        "port": str(server.port),
        "user": services.USER,
        "password": services.PASSWORD,
        "database": "postgres",
    }
    assert postgres.delivered([sample_events.put("a")], connection_string=url) == [DELIVERED]
    assert postgres.delivered([sample_events.put("b")], **separate) == [DELIVERED]
    assert len(postgres.held()) == 2


def test_of_several_hosts_one_that_answers_is_taken(postgres: Namespace) -> None:
    dsn = postgres.server.dsn()
    both = dsn.replace(f"host={services.LOOPBACK}", f"host={services.LOOPBACK},{services.LOOPBACK}")
    both = both.replace(f"port={postgres.server.port}", f"port={services.free_port()},{postgres.server.port}")
    assert postgres.delivered([sample_events.put("a")], connection_string=both) == [DELIVERED]


@pytest.mark.parametrize(
    ("mode", "authority", "encrypted"),
    [
        ("disable", "", False),
        ("prefer", "", True),
        ("require", "", True),
        ("require", "other_ca", None),  # as libpq has it: with an authority, require verifies
        ("verify-ca", "ca", True),
        ("verify-ca", "other_ca", None),
        ("verify-full", "ca", True),
    ],
)
@pytest.mark.parametrize("as_url", [False, True])
def test_sslmode_means_what_it_does_in_libpq_also_with_several_hosts_and_in_a_url(
    postgres: Namespace, certificates: services.Certificates, mode: str, authority: str, encrypted: bool | None,
    as_url: bool,
) -> None:  # fmt: skip
    """`encrypted` is what the server says of the connection; None where there must not be one."""
    closed, port, here = services.free_port(), postgres.server.port, services.LOOPBACK
    trusted = str(getattr(certificates, authority)) if authority else ""
    if as_url:
        dsn = f"postgresql://{services.USER}:{services.PASSWORD}@{here}:{closed},{here}:{port}/postgres?sslmode={mode}"
        dsn += f"&sslrootcert={trusted}" if trusted else ""
    else:
        dsn = postgres.server.dsn().replace(f"host={here} port={port}", f"host={here},{here} port={closed},{port}")
        dsn += f" sslmode={mode}" + (f" sslrootcert={trusted}" if trusted else "")
    target = postgres.target(connection_string=dsn)
    if encrypted is None:
        with pytest.raises(TargetUnavailable, match="certificate"):
            target.open()
        return
    target.open()
    assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
    ours = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'bucketwire'"
    services.until(lambda: postgres.ask(ours) == [(encrypted,)])
    target.close()


def test_a_schema_is_chosen_by_the_search_path(postgres: Namespace) -> None:
    postgres.ask("CREATE SCHEMA elsewhere")
    try:
        dsn = f"{postgres.server.dsn()} options=-csearch_path=elsewhere"
        assert postgres.delivered([sample_events.put("a")], connection_string=dsn) == [DELIVERED]
        assert postgres.ask("SELECT key FROM elsewhere.bucketevents") == [("images/a",)]
        assert postgres.held() == []
    finally:
        postgres.ask("DROP SCHEMA elsewhere CASCADE")


def test_a_client_certificate_is_shown(postgres: Namespace, certificates: services.Certificates) -> None:
    dsn = f"host={services.LOOPBACK} port={postgres.server.port} user=client dbname=postgres sslmode=verify-full"
    trusted = f"{dsn} sslrootcert={certificates.ca}"
    (refused,) = attempt(postgres.target(connection_string=trusted), [sample_events.put("a")], 1)
    assert isinstance(refused, Unavailable)
    shown = f"{trusted} sslcert={certificates.client_cert} sslkey={certificates.client_key}"
    assert postgres.delivered([sample_events.put("a")], connection_string=shown) == [DELIVERED]
