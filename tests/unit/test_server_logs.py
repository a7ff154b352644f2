"""What the servers logged during a failed test is kept, and nothing that they logged before."""

from __future__ import annotations

from pathlib import Path

from tests.support import server_logs


def test_only_what_a_log_gained_during_the_test_is_kept(tmp_path: Path) -> None:
    busy, silent, late, gone = (tmp_path / name for name in ("busy", "silent", "late", "gone"))
    logs = {busy: "redis", silent: "postgres", late: "mysql", gone: "nats"}
    for log in (busy, silent, gone):
        log.write_text("before\n")
    before = server_logs.sizes(logs)
    with busy.open("a") as file:
        file.write("during\nend\n")
    late.write_text("started\n")
    gone.unlink()
    kept = tmp_path / "kept"
    files = server_logs.keep("tests/a.py::test_b[x/y]", logs, before, kept=kept)
    assert {file.name: file.read_text() for file in files} == {
        "0-redis.log": "during\nend\n",
        "2-mysql.log": "started\n",
    }
    assert {file.parent for file in files} == {kept / "tests_a.py_test_b_x_y_"}
    assert server_logs.tail(files[0], 1) == ["    end"]
    assert server_logs.tail(files[0], 0) == []


def test_the_next_run_of_the_test_replaces_what_was_kept(tmp_path: Path) -> None:
    log, kept = tmp_path / "log", tmp_path / "kept"
    log.write_text("one")
    server_logs.keep("t", {log: "redis"}, {}, kept=kept)
    assert server_logs.keep("t", {log: "redis"}, server_logs.sizes({log: "redis"}), kept=kept) == []
    assert list(kept.iterdir()) == []


def test_a_log_that_was_emptied_meanwhile_is_kept_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("long ago, before")
    before = server_logs.sizes({log: "redis"})
    log.write_text("new")
    [file] = server_logs.keep("t", {log: "redis"}, before, kept=tmp_path / "kept")
    assert file.read_text() == "new"
