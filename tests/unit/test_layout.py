"""Lists of the command line are legible on terminals of any width."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from app.cli.commands import events, service
from app.cli_common import output
from app.cli_common.output import Column, Columns, Output, lay_out, terminal_width, text_width, wrap
from app.resources.reconciliation import Finding, Reconciliation
from app.resources.rule import Rule
from app.resources.service import Token
from app.resources.target import Target
from app.resources.undelivered import DeadLetter, Replay, Retry

WIDTHS = (80, 120, 200)
NAME = (
    "orders-of-the-northern-warehouse-and-of-every-branch-in-the-city"  # 64 characters, the most that a name may have
)
ARN = f"arn:minio:sqs:eu-central-1:{NAME}:elasticsearch"
KEY = "/".join(f"year={year}/month=11/the-report-of-a-branch" for year in range(2020, 2025))[:200]
REASON = "the index is read-only: FORBIDDEN/12/index read-only / allow delete (api); free some space on the node's disk"
MAX_INDENT = 30  # of a value in a block
COUNTERS = ("recorded", "delivered", "superseded", "pending", "parked", "dead", "purged", "discarded")
STATE = {"target": ARN, "state": "dead", "reason": REASON}
ROW: Mapping[str, Any] = {
    "arn": ARN, "target": ARN, "type": "elasticsearch", "name": NAME, "state": "unavailable", "mode": "async",
    "origin": "stored", "reason": REASON, "opening": {"state": "failed", "reason": REASON}, "oldest_age": 93784.0,
    "events": dict.fromkeys(COUNTERS, 1_234_567), "delivery_states": [STATE, STATE], "bucket": "b" * 63, "key": KEY,
    "id": "0123456789abcdef0123456789abcdef", "event_id": "0123456789abcdef0123456789abcdef", "version": "v" * 36,
    "at": "2026-11-21T14:00:00.000Z", "received_at": "2026-11-21T14:00:00.000Z", "actor": "openid:https://id.example",
    "address": "2001:db8::1", "action": "target.change", "resource": f"target:elasticsearch:{NAME}", "via": "PUT",
    "details": {"changed": ["url", "index", "queue_limit"], "since": 1_700_000_000_000}, "attempts": 12,
    "last_tried": "2026-11-21T14:00:00.000Z", "next_try": None, "history": [{"at": "", "reason": REASON}],
    "number": 17, "prefix": KEY, "suffix": ".jpg", "created_at": "2026-11-21T14:00:00.000Z", "replayed": 8,
    "progress": 0.25, "finished": False, "event": "s3:ObjectCreated:CompleteMultipartUpload", "job": "reconcile",
    "started_at": "2026-11-21T14:00:00.000Z", "repaired": 0, "problem": REASON, "kind": "missing", "differs": "",
    "scopes": ["read", "admin"], "buckets": ["b" * 63] * 3, "targets": [ARN, ARN], "frontend": "minio",
}  # fmt: skip
LISTS: Mapping[str, Columns] = {
    "status": service.STATUS_COLUMNS, "event history": events.COLUMNS, "audit": service.AUDIT_COLUMNS,
    "target ls": Target.columns,
    "rule ls": Rule.columns, "dead-letter ls": DeadLetter.columns, "retry ls": Retry.columns,
    "replay --list": Replay.columns, "reconcile ls": Reconciliation.columns, "findings": Finding.columns,
    "token ls": Token.columns,
}  # fmt: skip
EVENTS = {Rule.columns["events"]: ["s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:ObjectAccessed:*"]}


class Member(dict[str, Any]):
    """A row that has every member; those of the drift's kinds are numbers."""

    def __missing__(self, _name: str) -> int:
        return 3


def printed(columns: Columns, capsys: pytest.CaptureFixture[str], *rows: Mapping[str, Any]) -> list[str]:
    Output().rows(rows, columns)
    return capsys.readouterr().out.splitlines()


def row(name: str) -> Mapping[str, Any]:
    return Member(ROW) | (EVENTS if name == "rule ls" else {})


def test_cells_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert "99 %" in " ".join(printed(Replay.columns, capsys, Member(ROW | {"progress": 0.999}))), "not done yet"
    unavailable = Member(ROW | {"history": [], "attempts": 0})
    assert "waits for the target" in " ".join(printed(Retry.columns, capsys, unavailable))
    created = Member(ROW | {"details": {"scopes": "read", "expires_at": 1_796_004_793_328}})
    assert "expires_at 2026-11-30T02:13:13.328Z" in " ".join(printed(service.AUDIT_COLUMNS, capsys, created))
    waits = Member(ROW | {"problem": "", "note": "no Spark worker is there"})
    assert "no Spark worker is there" in " ".join(printed(Reconciliation.columns, capsys, waits))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", LISTS)
def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(
    name: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = printed(LISTS[name], capsys, Member(row(name)), Member(row(name)))
    assert max(map(len, lines)) <= width
    monkeypatch.delenv("COLUMNS")
    whole = set(" ".join(printed(LISTS[name], capsys, Member(row(name)), Member(row(name)))[2:]).split())
    words = set(" ".join(lines).split())
    broken = whole - words - {"0"}  # a column of zeros is left out
    assert [word for word in broken if len(word) < width - MAX_INDENT] == []
    parts = words - whole - {header for headers in LISTS[name] for header in headers.split()}
    assert all(
        re.search("[/:=-]$", part) or any(word.endswith(part) for word in broken) for part in parts if "─" not in part
    )


@pytest.mark.parametrize("width", [20, 33, 80, 120, 200])
def test_nothing_of_a_row_is_lost(width: int) -> None:
    columns = [
        Column("a target", [ARN, "short"]),
        Column("reason", [REASON, ""]),
        Column("key", [KEY * 3, "ключ" * 40]),
    ]
    lines = lay_out(columns, width).lines
    assert max(map(text_width, lines)) <= width
    squeezed = re.sub(r"\s", "", "".join(lines))
    for text in (ARN, REASON, KEY * 3, "ключ" * 40):
        assert re.sub(r"\s", "", text) in squeezed


def test_short_rows_are_a_table_and_long_ones_a_block_each() -> None:
    short = [Column("id", ["1", "22"], numeric=True), Column("reason", ["it is full", "no"])]
    assert lay_out(short, 80).lines == [
        "id  reason", "──  ──────────", " 1  it is full", "22  no",
    ]  # fmt: skip
    long = [
        Column("id", ["1", "2"], numeric=True),
        Column("key", ["k" * 75, "short"]),
        Column("dead", ["0", "4"], True),
    ]
    assert lay_out(long, 80).lines == ["id   1", "key  " + "k" * 75, "", "id    2", "key   short", "dead  4"]


def test_a_column_that_is_zero_or_empty_everywhere_is_left_out_on_a_terminal() -> None:
    columns = [Column("target", ["a"]), Column("dead", ["0"], numeric=True), Column("reason", [""]), Column("n", ["0"])]
    assert lay_out(columns, 80).lines[0] == "target  n"
    assert lay_out(columns, None).lines[0] == "target  dead  reason  n"


@pytest.mark.parametrize(("name", "omitted"), [("orders", ["mode", "recorded", "delivered"]), (NAME, [])])
def test_status_of_targets_with_waiting_events_is_a_table_of_80_columns(
    name: str, omitted: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    events = dict.fromkeys(COUNTERS, 1_234_567) | {"superseded": 0, "purged": 0}
    target = Member(ROW | {"name": name, "arn": f"postgresql:{name}", "events": events})
    Output().rows([target, target], service.STATUS_COLUMNS, dispensable=service.DISPENSABLE)
    shown, said = capsys.readouterr()
    assert (shown.count("\n\n") == 0) is bool(omitted), "where not even that makes a table, nothing is left out"
    assert max(map(len, shown.splitlines())) <= 80
    assert said == (f"not shown in so narrow a terminal: {', '.join(omitted)}\n" if omitted else "")
    assert {"pending", "parked", "dead", "discarded", "waiting"} <= set(shown.split())
    assert all((header in shown.split()) is (header not in omitted) for header in ("mode", "recorded", "delivered"))


def test_a_pipe_gets_a_row_in_each_line_and_no_colour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal_width() is None
    lines = printed({"key": "key", "reason": "reason"}, capsys, {"key": KEY * 9, "reason": REASON})
    assert lines[2:] == [f"{KEY * 9}  {REASON}"]
    assert "\x1b" not in "".join(lines)


def test_a_long_word_is_broken_after_a_separator_and_one_without_where_it_must() -> None:
    assert wrap("s3://images/cats/black/tom.jpg is it", 12) == ["s3://images/", "cats/black/", "tom.jpg is", "it"]
    assert wrap("a-word/of-many-parts", 12) == ["a-word/", "of-many-", "parts"]
    assert wrap("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]
    assert wrap("猫" * 7, 10) == ["猫" * 5, "猫" * 2]
    assert wrap("", 10) == [""]


def test_lines_that_hang_begin_below_the_first() -> None:
    assert output.hang("  ok  ", "all is well and so is it here", 34) == [
        "  ok  all is well and so is it", "      here",
    ]  # fmt: skip
