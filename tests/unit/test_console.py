"""The console's judgement, numbers and words; and that its vendored files are the published ones."""

from __future__ import annotations

import os
import re
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from werkzeug.datastructures import Headers

from app.console import formats
from app.console.formats import incoming_rate, newest, newest_times, points
from app.console.session import is_same_site
from app.console.views.events import explain, steps, trial
from app.console.views.reconciliations import trends
from app.console.views.service import lines, page_of

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "app/console/static"


def sample(at: str, **totals: int) -> dict[str, Any]:
    zero = dict.fromkeys(("recorded", "delivered", "failed", "dead_lettered", "backlog"), 0)
    return {"at": f"2026-11-21T00:{at}Z", "oldest_age": None, **zero, **totals}


def test_totals_become_rates() -> None:
    samples = [sample("00:00", delivered=10), sample("00:10", delivered=60), sample("00:20", delivered=60, backlog=4)]
    found = points(samples, width=10)
    assert [(point.delivered, point.backlog) for point in found] == [(5.0, 0), (0.0, 4)]


def test_a_total_that_was_counted_anew_is_no_negative_rate() -> None:
    assert [
        point.recorded for point in points([sample("00:00", recorded=50), sample("00:10", recorded=2)], width=10)
    ] == [0]


def test_a_gap_is_divided_by_its_length_and_one_sample_says_nothing() -> None:
    assert [point.recorded for point in points([sample("00:00"), sample("01:40", recorded=100)], width=10)] == [1.0]
    assert points([sample("00:00")], width=10) == []
    assert points([], width=10) == []


def test_the_worst_delivery_time_of_a_point_is_shown_and_none_where_there_is_none() -> None:
    times = [{"p50": 0.1, "p99": 0.5}, {"p50": 0.2, "p99": 4.0}, {"p50": None, "p99": None}, {}]
    samples = [sample(f"00:{number}0") | given for number, given in enumerate([{}, *times])]
    found = points(samples, width=20)
    assert [(point.p50, point.p99) for point in found] == [(0.2, 4.0), (None, None)]
    assert [point.p99 for point in points([sample("00:00"), sample("00:10")], width=10)] == [None]


def test_what_cannot_be_seen_is_written_out() -> None:
    assert formats.visible("a<b>\u202e\n\x00") == (
        '<bdi class="key">a&lt;b&gt;<span class="odd">\\u202e</span><span class="odd">\\u000a</span>'
        '<span class="odd">\\u0000</span></bdi>'
    )
    assert "\u202e" not in formats.pretty_json({"k": "a\u202e\n"})


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("no preview of this format", "no preview of this format"),
        ("https://example.com/a answered 422", "https://|example.|com/|a answered 422"),
        ("arn:minio:sqs::thumbnails:webhook", "arn:|minio:|sqs::|thumbnails:|webhook"),
        ("s3:ObjectCreated:CompleteMultipartUpload", "s3:|ObjectCreated:|CompleteMultipartUpload"),
        ("10.0.0.1:12345,1.500.000", "10.0.0.1:12345,1.500.000"),
        ("a/b/c", "a/b/c"),
        ("<b>&amp;</b></i></u>", "&lt;b&gt;&amp;|amp;&lt;/|b&gt;&lt;/|i&gt;&lt;/|u&gt;"),
    ],
)
def test_a_line_breaks_at_spaces_and_in_long_texts_after_punctuation(text: str, written: str) -> None:
    assert formats.visible(text) == f'<bdi class="key">{written.replace("|", "<wbr>")}</bdi>'


def test_what_is_longer_than_a_word_may_break_anywhere() -> None:
    assert formats.visible("id " + "a1" * 16) == f'<bdi class="key">id <span class="long">{"a1" * 16}</span></bdi>'


def finding(subject: str, grade: str, *command: str) -> dict[str, Any]:
    return {"subject": subject, "grade": grade, "text": f"{grade} of {subject}", "command": list(command)}


def test_findings_of_one_subject_stand_together_and_the_gravest_first() -> None:
    found = [
        finding("webhook:a", "warning"), finding("webhook:b", "note"), finding("drain", "problem"),
        finding("webhook:b", "problem"), finding("webhook:a", "warning"),
    ]  # fmt: skip
    shown = lines(found, may_change=True, sees_all=True)
    assert [(each.subject, each.grade, each.follows) for each in shown] == [
        ("drain", "problem", False), ("webhook:b", "problem", False), ("webhook:b", "note", True),
        ("webhook:a", "warning", False), ("webhook:a", "warning", True),
    ]  # fmt: skip
    assert len({each.id for each in shown}) == len(shown)
    assert [each.path for each in shown][::2] == ["processes", "targets/webhook/b", "targets/webhook/a"]


@pytest.mark.parametrize(
    ("found", "of_admin", "of_reader", "of_limited"),
    [
        (finding("webhook:a", "problem", "target", "test", "webhook:a"), "Test targets/webhook/a/test", "targets", ""),
        (finding("webhook:a", "warning", "target", "resume", "webhook:a"), "Resume targets/webhook/a/resume", "", ""),
        (finding("source kafka:a", "note", "source", "resume", "kafka:a"), "Resume sources/kafka/a/resume", "", ""),
        (finding("webhook:a", "warning", "target", "show", "webhook:a"), "Show targets/webhook/a", "", ""),
        (finding("webhook:a", "warning", "dead-letter", "ls", "--target", "webhook:a"), "Show dead-letters", "", ""),
        (finding("webhook:a", "warning", "retry", "ls", "--target", "webhook:a"), "Show retries", "", ""),
        (
            finding("webhook:a", "warning", "event", "search", "--target", "webhook:a", "--state", "discarded"),
            "Show events",
            "",
            "targets",
        ),
        (finding("keys", "warning", "event", "show", "12ab"), "Show events/12ab", "", "doctor"),
        (finding("webhook:a", "warning", "reconcile", "ls"), "Show reconciliations", "", "targets"),
        (finding("webhook:a", "problem", "worker", "--targets", "webhook:a"), "Show processes", "", "targets"),
        (finding("tokens", "warning", "token", "ls"), "Show tokens", "doctor", "doctor"),
        (finding("sign-ins", "note", "audit", "--action", "session.refuse"), "Show audit", "doctor", "doctor"),
        (finding("database", "problem", "migrate"), "Show doctor", "", ""),
        (finding("source sqs:b", "problem"), "Show sources/sqs/b", "", ""),
    ],
)
def test_a_finding_has_what_its_visitor_can_do_about_it(
    found: dict[str, Any], of_admin: str, of_reader: str, of_limited: str
) -> None:
    def action(*, may_change: bool, sees_all: bool) -> str:
        [line] = lines([found], may_change=may_change, sees_all=sees_all)
        assert line.action.is_form == (line.action.text in ("Test", "Resume"))
        return f"{line.action.text} {line.action.path}"

    assert action(may_change=True, sees_all=True) == of_admin
    page = of_admin if of_admin.startswith("Show") else f"Show {page_of(found['subject'])}"
    for may_change, sees_all, other in ((False, True, of_reader), (False, False, of_limited)):
        seen = action(may_change=may_change, sees_all=sees_all)
        assert seen.startswith(f"Show {other}" if other else page), seen


def test_what_is_too_long_for_a_page_is_shortened() -> None:
    usual = {"a": ["x" * 1000, 1, None, {"b": True}], "c": 1.5}
    assert formats.shortened(usual) == usual
    assert formats.shortened({"k": "x" * 2_000_000}) == {"k": "x" * 1000 + "… (1,999,000 more characters)"}
    many = formats.shortened(["x"] * 500_000)
    assert many[-1] == f"… {500_000 - len(many) + 1:,} more items"
    assert len(formats.pretty_json(formats.shortened({f"k{n}" * 300: ["y" * 5000] * 9 for n in range(999)}))) < 200_000
    deep = formats.shortened({"first": {"a": "x" * 999} | {str(n): "y" * 999 for n in range(999)}, "last": 1})
    assert deep["…"] == "1 more members"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0.0 s"),
        (0.0002, "1 ms"),
        (0.04, "40 ms"),
        (0.9996, "1.0 s"),
        (9.94, "9.9 s"),
        (59, "59 s"),
        (61, "1 min"),
        (3700, "1 h 1 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_a_duration_is_short(seconds: float | None, text: str) -> None:
    assert formats.duration(seconds) == text


def test_a_command_can_be_pasted_into_a_shell() -> None:
    assert (
        formats.command("event", "history", "it's", "$(rm) `x`") == "bucketwire event history 'it'\"'\"'s' '$(rm) `x`'"
    )
    written = formats.command("event", "a'b\\c\n\u202e🎉")
    assert written.isprintable()
    read = subprocess.run(
        ["bash", "-c", f"printf %s {written.removeprefix('bucketwire event ')}"],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
    )
    assert read.stdout.decode() == "a'b\\c\n\u202e🎉"


def test_a_time_is_in_utc_whatever_its_zone() -> None:
    assert "2026-11-21 00:33:56 UTC" in formats.when("2026-11-21T02:33:56.082+02:00")


def test_what_is_due_is_never_in_the_past() -> None:
    assert ">now</time>" in formats.when("2020-01-01T00:00:00Z", due=True)
    assert ">in " in formats.when("2999-01-01T00:00:00Z", due=True)
    assert " ago</time>" in formats.when("2020-01-01T00:00:00Z", ago=True)


def test_a_state_has_a_word_and_a_sign() -> None:
    for word in (
        "running",
        "failing",
        "paused",
        "disabled",
        "unavailable",
        "broken",
        "pending",
        "parked",
        "dead",
        "settled",
    ):
        assert re.fullmatch(
            rf'<span class="state \w+"><span class="sign" aria-hidden="true">\S</span>{word}</span>',
            formats.state(word),
        )


def test_the_recorded_attempts_of_an_event_are_its_timeline() -> None:
    failed = {
        "at": "x",
        "outcome": "failed",
        "attempt": 1,
        "events": 1,
        "duration": 0.5,
        "replay": None,
        "reason": "500",
    }
    superseded = failed | {
        "outcome": "superseded",
        "attempt": None,
        "events": 3,
        "duration": 0,
        "replay": 7,
        "reason": "",
    }
    state = {"state": "settled", "target": "t", "history": [], "timeline": [failed, superseded]}
    assert [(step["kind"], step["text"], step["more"]) for step in steps(state)] == [
        ("bad", "failed: 500", "attempt 1, in 500 ms"),
        ("good", "superseded", "with 2 others, by replay 7"),
    ]
    assert explain(state, None, []).startswith("Superseded: a newer event")
    kept = {"state": "dead", "history": [{"at": "x", "reason": "400"}]}
    assert [(step["kind"], step["text"]) for step in steps(kept)] == [("bad", "400")]


def test_every_word_of_a_sites_request_counts() -> None:
    assert is_same_site(Headers({"Host": "a", "Origin": "http://a"}))
    assert not is_same_site(Headers({"Host": "a", "Origin": "http://b"}))
    assert not is_same_site(Headers({"Host": "a", "Origin": "http://a", "Sec-Fetch-Site": "cross-site"}))
    assert not is_same_site(Headers({"Host": "", "Origin": "null"}))


def test_the_vendored_files_are_the_published_ones() -> None:
    """VENDORED lists them with the npm packages that they are from, their integrity and their own SHA-256."""
    listed = re.findall(r"^([0-9a-f]{64})  (\S+)$", (STATIC / "vendor/VENDORED").read_text(), re.MULTILINE)
    files = {path.name for path in (STATIC / "vendor").iterdir()} - {"VENDORED"}
    assert {name for _, name in listed} == files
    for digest, name in listed:
        assert sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest, name
    for library in ("htmx", "uPlot"):
        assert any(name.startswith(library) and "LICENSE" in name for name in files)


def test_the_templates_and_files_are_packaged() -> None:
    import tomllib

    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    console = ROOT / "app/console"
    packaged = {path for pattern in patterns for path in console.glob(pattern) if path.is_file()}
    present = {path for path in console.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert present == packaged


@pytest.mark.parametrize(
    ("target", "state", "expected"),
    [
        ({"state": "running", "opening": "due"}, {"state": "pending"}, ["ok", "ok", "waiting", "waiting"]),
        ({"state": "running", "opening": "opened"}, {"state": "settled"}, ["ok", "ok", "ok", "ok"]),
        ({"state": "running", "opening": "due"}, {"state": "settled"}, ["ok", "ok", "ok", "ok"]),
        ({"state": "paused", "opening": "opened"}, {"state": "pending"}, ["ok", "waiting", "ok", "waiting"]),
        ({"state": "unavailable", "opening": "failed"}, {"state": "pending"}, ["ok", "ok", "failed", "failed"]),
        (
            {"state": "running", "opening": "opened"},
            {"state": "parked", "history": [{"at": "", "reason": "500 broken"}]},
            ["ok", "ok", "ok", "failed"],
        ),
        (None, {"state": "pending"}, ["ok", "failed"]),
    ],
)
def test_a_test_event_shows_the_step_that_it_has_come_to(
    target: dict[str, Any] | None, state: dict[str, Any], expected: list[str]
) -> None:
    if target is not None:
        opening = {"state": target["opening"], "at": None, "reason": "refused"}
        target = {"type": "webhook", "settings": {}, "reason": "refused"} | target | {"opening": opening}
    found = trial({"id": "0" * 32}, {"history": [], "timeline": []} | state, target)
    assert [step.state for step in found] == expected
    assert all(step.why for step in found)


def test_the_drift_of_a_mirror_is_followed_from_run_to_run() -> None:
    def run(bucket: str, state: str, missing: int, repaired: int = 0, job: str = "reconcile") -> dict[str, Any]:
        counts = {"missing": missing, "stale": 0, "orphaned": 0, "malformed": 0, "repaired": repaired}
        return {
            "bucket": bucket,
            "target": "arn:minio:sqs::m:redis",
            "job": job,
            "prefix": "",
            "state": state,
            "id": bucket,
        } | counts

    newest_first = [
        run("a", "running", 0), run("a", "repaired", 5, 3), run("b", "drift", 9), run("a", "failed", 0),
        run("a", "drift", 5), run("a", "backfilled", 7, job="backfill"), run("a", "clean", 0),
    ]  # fmt: skip
    assert [(each.bucket, each.drifts) for each in trends(newest_first)] == [("b", [9]), ("a", [0, 5, 2])]
    assert trends([]) == []


def test_a_rate_is_one_of_now_only_while_samples_are_taken() -> None:
    curve = points([sample("00:00"), sample("00:10", delivered=50)], width=10)
    assert (newest(curve, curve[-1].at + 20), newest(curve, curve[-1].at + 300)) == (curve[-1], None)
    assert newest([], 0) is None


def test_delivery_times_of_now_are_those_of_the_last_minute_and_none_where_nothing_is_delivered() -> None:
    samples = [
        sample("00:00"),
        sample("00:10") | {"p50": 0.1, "p99": 0.5},
        sample("00:20") | {"p50": 0.2, "p99": 0.4},
        sample("00:30"),
    ]
    curve = points(samples, width=10)
    assert newest_times(curve, curve[-1].at + 10) == (0.2, 0.5)
    assert newest_times(curve, curve[1].at + 60) == (None, None), "the last delivery is a minute old"
    assert newest_times([], 0) == (None, None)


@pytest.mark.parametrize(
    ("ways", "rate"),
    [
        ([(100, 2.5), (50, 1.0)], 3.5),
        ([(100, 2.5), (0, None)], 2.5),
        ([(100, 2.5), (50, None)], None),
        ([(0, None)], 0.0),
        ([(100, None), (0, None)], None),
    ],
)
def test_what_comes_in_is_the_sum_of_all_ways_unless_one_is_unknown(
    ways: list[tuple[int, float | None]], rate: float | None
) -> None:
    assert incoming_rate([{"recorded": recorded, "rate": rate} for recorded, rate in ways]) == rate
