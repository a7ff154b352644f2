"""The spool folder: order, exactly once, what a crash or a bad file leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.events.model import Event
from app.outbox import tables
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.log.spool import DamagedFile, Spool, SpoolFeeder, decoded, encoded
from tests import services
from tests.support.builders import add_target, event, migrated

DAMAGED = pytest.mark.nightly("a file that was cut, and one that was changed: it is not what its digest says")

NIGHTLY = pytest.mark.nightly(
    "SQLite and PostgreSQL: the outbox's own tests execute its statements on all four",
    when=lambda outbox_url: outbox_url in {"mysql", "mariadb"},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def recorded(database: Database) -> list[str]:
    with database.reading() as connection:
        return list(connection.execute(sa.select(tables.events.c.id).order_by(tables.events.c.seq)).scalars())


def many(number: int, size: int = 2) -> list[list[Event]]:
    return [[event(f"{request}-{place}") for place in range(size)] for request in range(number)]


def test_what_is_spooled_comes_out_as_it_went_in(folder: Path) -> None:
    odd = [event("a\tb\nc \\ \U0001f600", version="v1"), event("ü" * 500, sequencer="")]
    spool = Spool(folder)
    spool.append(odd)
    [path] = spool.files()
    assert decoded(path.read_bytes()) == odd
    assert path.stat().st_mode & 0o077 == 0


def test_a_spooled_file_has_its_name_on_the_disk_before_its_request_is_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure right after the answer must not take the file away."""
    spool, fsync = Spool(folder), os.fsync
    synced: list[tuple[Path, list[Path]]] = []

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), spool.files()))

    monkeypatch.setattr(os, "fsync", noting)
    spool.append([event("a")])
    [path] = spool.files()
    assert synced == [(path.with_suffix(".draft"), []), (folder, [path])]


@NIGHTLY
def test_requests_are_fed_in_the_order_in_which_they_were_spooled(outbox_url: str, folder: Path) -> None:
    database = migrated(outbox_url)
    add_target(database)
    requests = many(1203)
    writers = [Spool(folder) for _ in range(3)]
    for number, events in enumerate(requests):
        writers[number % 3].append(events)
    assert SpoolFeeder(Spool(folder), database).feed() == len(requests)
    assert recorded(database) == [one.id for events in requests for one in events]
    assert not Spool(folder).pending()
    database.close()


@NIGHTLY
def test_a_crash_between_commit_and_removal_records_nothing_twice(outbox_url: str, folder: Path) -> None:
    database = migrated(outbox_url)
    requests = many(5)
    spool = Spool(folder)
    for events in requests:
        spool.append(events)
    kept = {path: path.read_bytes() for path in spool.files()}
    SpoolFeeder(spool, database).feed()
    for path, content in kept.items():
        path.write_bytes(content)  # as if the process had been killed after the commit
    assert SpoolFeeder(spool, database).feed() == 5
    assert recorded(database) == [one.id for events in requests for one in events]
    database.close()


def test_nothing_is_removed_while_the_database_is_away(folder: Path) -> None:
    server = services.postgres()
    with server:
        database = migrated(server.create_database("outbox"))
        requests = many(3)
        spool = Spool(folder)
        for events in requests:
            spool.append(events)
        server.stop()
        with pytest.raises(DatabaseUnavailable):
            SpoolFeeder(spool, database).feed()
        assert len(spool.files()) == 3
        server.start()
        assert _fed(SpoolFeeder(spool, database)) == 3
        assert recorded(database) == [one.id for events in requests for one in events]
        database.close()


def _fed(feeder: SpoolFeeder) -> int:
    """Feed; the first use of a pooled connection that the server's restart has cut is an error like any other."""
    for _ in range(10):
        try:
            return feeder.feed()
        except DatabaseUnavailable:
            continue
    raise AssertionError("the database does not come back")


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        pytest.param(lambda content: b"", marks=DAMAGED),
        lambda content: content.replace(b"images", b"imagex"),
        pytest.param(lambda content: b"something else\n" + content, marks=DAMAGED),
        pytest.param(lambda content: encoded([])[:20] + b"\0" * 100, marks=DAMAGED),
    ],
    ids=["cut", "empty", "changed", "foreign", "zeros"],
)
def test_a_damaged_file_is_set_aside_and_holds_nobody_up(postgres_outbox: str, folder: Path, damage: object) -> None:
    database = migrated(postgres_outbox)
    spool = Spool(folder)
    before, broken, after = many(3)
    for events in (before, broken, after):
        spool.append(events)
    path = spool.files()[1]
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator] # pytest's parameters have no type
    SpoolFeeder(spool, database).feed()
    assert recorded(database) == [one.id for one in (*before, *after)]
    assert spool.damaged() == 1
    assert (spool.quarantined / f"{path.stem}.bad").exists()
    assert not spool.pending()
    database.close()


def test_what_cannot_be_read_is_set_aside_with_its_reason(postgres_outbox: str, folder: Path) -> None:
    database = migrated(postgres_outbox)
    spool = Spool(folder)
    before, odd, after = many(3)
    spool.append(before)
    place = folder / f"{int(spool.files()[0].stem) + 1:020d}.events"
    spool.append(odd)
    spool.append(after)
    place.unlink()
    place.mkdir()  # as if somebody had unpacked something here
    SpoolFeeder(spool, database).feed()
    assert recorded(database) == [one.id for one in (*before, *after)]
    assert (spool.quarantined / f"{place.stem}.bad").is_dir()
    assert "directory" in (spool.quarantined / f"{place.stem}.reason").read_text()
    database.close()


def test_quarantined_files_are_not_among_those_that_each_request_looks_through(folder: Path) -> None:
    spool = Spool(folder)
    for number in range(40):
        spool.append([event(f"{number}")])
        [path] = spool.files()
        if number % 2:
            spool.quarantine_file(path, "it is damaged")
        else:
            spool.quarantine(path, [(event(f"{number}"), "it is refused")])
    assert spool.damaged() == 40
    assert not spool.pending()
    assert len(list(folder.iterdir())) < 5
    (folder / "number.lock").write_bytes(b"")  # as a power failure may leave it
    again = Spool(folder)
    again.append([event("after")])
    assert int(again.files()[0].stem) > max(int(path.stem) for path in spool.quarantined.glob("*.bad"))


@pytest.mark.nightly(
    "without a key and a record: it holds what is no event, whatever it is instead",
    when=lambda changed: changed.keys().isdisjoint({"key", "record"}),
)
@pytest.mark.parametrize("changed", [{"key": None}, {"time": "now"}, {"record": {}}, {"trace": 7}, {"origin": 7}])
def test_a_file_that_holds_no_events_is_set_aside(postgres_outbox: str, folder: Path, changed: dict[str, Any]) -> None:
    """Its digest fits: a person has repaired it, or another version wrote it."""
    database = migrated(postgres_outbox)
    spool = Spool(folder)
    after = [event("after")]
    spool.append([event()])
    spool.files()[0].write_bytes(encoded([event()._replace(**changed)]))
    spool.append(after)
    SpoolFeeder(spool, database).feed()
    assert recorded(database) == [after[0].id]
    assert spool.damaged() == 1
    database.close()


def test_requests_that_come_together_share_files_of_a_bounded_size(folder: Path) -> None:
    spool = Spool(folder)
    large = event("large")._replace(record="x" * (6 << 20))
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(lambda _: spool.append([large]), range(12)))
    assert max(path.stat().st_size for path in spool.files()) < 17 << 20
    assert sum(len(decoded(path.read_bytes())) for path in spool.files()) == 12


def test_a_value_that_the_database_refuses_is_set_aside_and_holds_nobody_up(postgres_outbox: str, folder: Path) -> None:
    database = migrated(postgres_outbox)
    spool = Spool(folder)
    before, after = many(2)
    spool.append(before)
    spool.append([event("zero\0byte")])
    spool.append(after)
    SpoolFeeder(spool, database).feed()
    assert recorded(database) == [one.id for one in (*before, *after)]
    assert spool.damaged() == 1
    database.close()


def test_a_database_without_tables_is_no_reason_to_set_anything_aside(postgres_database: str, folder: Path) -> None:
    database = Database(postgres_database)
    spool = Spool(folder)
    spool.append([event()])
    with pytest.raises(sa.exc.ProgrammingError):
        SpoolFeeder(spool, database).feed()
    assert len(spool.files()) == 1
    assert not spool.damaged()
    database.close()


@NIGHTLY
def test_a_promised_request_is_taken_over_the_limit_of_a_target_that_refuses(outbox_url: str, folder: Path) -> None:
    database = migrated(outbox_url)
    add_target(database, queue_limit=1, queue_full="reject")
    spool = Spool(folder)
    requests = many(3)
    for events in requests:
        spool.append(events)
    SpoolFeeder(spool, database).feed()
    assert len(recorded(database)) == 6
    with database.reading() as connection:
        assert connection.execute(sa.select(tables.targets.c.recorded, tables.targets.c.discarded)).one() == (6, 0)
    database.close()


def test_numbers_only_grow_also_after_the_counter_is_lost(folder: Path) -> None:
    Spool(folder).append([event("first")])
    Spool(folder).append([event("second")])
    (folder / "number.lock").write_bytes(b"")  # what a power cut may leave of it
    Spool(folder).append([event("third")])
    keys = [decoded(path.read_bytes())[0].key for path in Spool(folder).files()]
    assert keys == ["first", "second", "third"]


def test_only_one_process_feeds_at_a_time(postgres_outbox: str, folder: Path) -> None:
    database = migrated(postgres_outbox)
    spool = Spool(folder)
    spool.append([event()])
    with spool.feeding() as mine:
        assert mine
        assert SpoolFeeder(Spool(folder), database).feed() == 0
        assert spool.pending()
    assert SpoolFeeder(Spool(folder), database).feed() == 1
    database.close()


def test_threads_and_processes_share_the_numbers(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.support.builders import event\n"
        "from app.outbox.log.spool import Spool\n"
        "spool = Spool(Path(sys.argv[1]))\n"
        "for number in range(50): spool.append([event(f'{sys.argv[2]}-{number:03d}')])"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program, folder, str(child)], cwd=Path(__file__).parents[3])
        for child in range(2)
    ]
    spool = Spool(folder)
    threads = [
        threading.Thread(target=lambda name=name: [spool.append([event(f"{name}-{n:03d}")]) for n in range(50)])
        for name in ("t1", "t2")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [child.wait(60) for child in children] == [0, 0]
    keys = [one.key for path in spool.files() for one in decoded(path.read_bytes())]
    assert len(keys) == len(set(keys)) == 200
    for writer in ("0", "1", "t1", "t2"):
        mine = [key for key in keys if key.startswith(f"{writer}-")]
        assert mine == sorted(mine)


def _writes_for_ever(folder: Path) -> int:
    """The id of a process that spools one request after the other."""
    child = os.fork()
    if child == 0:
        signal.alarm(300)  # at the latest, should this process be gone
        try:
            spool = Spool(folder)
            while True:
                spool.append([event(f"{n}") for n in range(200)])
        finally:
            os._exit(1)  # it must not go on as a second pytest
    return child


def test_a_writer_that_is_killed_leaves_whole_files_only(folder: Path) -> None:
    for _ in range(5):
        seen = len(Spool(folder).files())
        child = _writes_for_ever(folder)
        try:
            services.until(lambda seen=seen: len(Spool(folder).files()) > seen + 3, 30)
        finally:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    spool = Spool(folder)
    for path in spool.files():
        assert len(decoded(path.read_bytes())) == 200
    spool.append([event("next")])
    assert decoded(spool.files()[-1].read_bytes())[0].key == "next"


def test_a_full_disk_keeps_nothing_of_the_request(tmp_path: Path) -> None:
    program = (
        "import errno, sys; from pathlib import Path; from tests.support.builders import event\n"
        "from app.outbox.log.spool import decoded; from app.outbox.log.spool import Spool\n"
        "spool = Spool(Path(sys.argv[1]) / 'spool')\n"
        "spool.append([event('fits')])\n"
        "try: spool.append([event(f'{number}') for number in range(2000)])\n"
        "except OSError as error: assert error.errno == errno.ENOSPC, error\n"
        "else: raise AssertionError('it took what cannot fit')\n"
        "assert [decoded(path.read_bytes())[0].key for path in spool.files()] == ['fits']\n"
        "assert not list(spool.folder.glob('*.draft'))\n"
        "spool.append([event('fits too')])\n"
    )
    mounted = 'mount -t tmpfs -o size=256k tmpfs "$1" || exit 77; exec "$2" -c "$3" "$1"'
    run = ["unshare", "--mount", "sh", "-c", mounted, "sh", tmp_path, sys.executable, program]
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare, to mount a small disk with")
    done = subprocess.run(run, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    if done.returncode in (1, 77) and "ermi" in done.stderr:
        pytest.skip(f"this user may not mount a small disk: {done.stderr}")
    assert done.returncode == 0, done.stderr


def test_a_file_of_another_version_is_not_read_as_something_else() -> None:
    content = encoded([event()]).replace(b"bucketwire-spooled-1", b"bucketwire-spooled-2")
    with pytest.raises(DamagedFile, match="does not begin"):
        decoded(content)
