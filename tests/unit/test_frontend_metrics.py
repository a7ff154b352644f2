"""What the metrics of a MinIO mean for the events that it should send."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.cli.frontend_metrics import CLUSTER_PATH, check, metrics_url, parse

NODE = 'server="a:9000"'


def exported(
    *, queue: int = 0, total: int = 0, failed: int = 0, skipped: int = 0, kind: str = "webhook", node: str = NODE
) -> str:
    """The metrics of version 2 as a MinIO with one target exports them."""
    target = f'{node},target_id="bw",target_name="{kind}"'
    return f"""# TYPE minio_node_process_starttime_seconds gauge
minio_node_process_starttime_seconds{{{node}}} 1000
# TYPE minio_notify_events_sent_total counter
minio_notify_events_sent_total{{{node}}} {total}
# TYPE minio_notify_events_errors_total counter
minio_notify_events_errors_total{{{node}}} {failed}
# TYPE minio_notify_events_skipped_total counter
minio_notify_events_skipped_total{{{node}}} {skipped}
# TYPE minio_notify_target_total_events counter
minio_notify_target_total_events{{{target}}} {total}
# TYPE minio_notify_target_failed_events counter
minio_notify_target_failed_events{{{target}}} {failed}
# TYPE minio_notify_target_queue_length gauge
minio_notify_target_queue_length{{{target}}} {queue}
"""


def found(before: str, after: str) -> Iterator[tuple[str, str]]:
    return ((one.grade, one.text) for one in check("minio", parse(before), parse(after), 15, 1090))


@pytest.mark.parametrize(
    ("before", "after", "grade", "says"),
    [
        # All is sent within a tick: the queue has the newest events.
        ({"queue": 90, "total": 1000}, {"queue": 140, "total": 2000}, "ok", "140 events in its queue, which came"),
        ({"queue": 1, "total": 5}, {"queue": 1, "total": 6}, "ok", "1 event in its queue, which came in the last 15 s"),
        # The endpoint is down, with and without new events, and with the queue at its limit.
        ({"queue": 4, "total": 4}, {"queue": 9, "total": 9}, "problem", "it grows: 4 15 s ago"),
        ({"queue": 4, "total": 4}, {"queue": 4, "total": 4}, "problem", "as many as 15 s ago"),
        (
            {"queue": 5, "total": 9, "failed": 4}, {"queue": 5, "total": 90, "failed": 85},
            "problem", "5 events in its queue, as many as",
        ),
        # The endpoint is too slow: the oldest event waits for longer than 15 s.
        ({"queue": 900, "total": 1000}, {"queue": 1400, "total": 2000}, "problem", "it grows: 900"),
        # It is up again.
        ({"queue": 900, "total": 1000}, {"queue": 400, "total": 1200}, "ok", "500 fewer than 15 s ago"),
        # The node has been restarted, so that its counters begin again; its queue is on disk.
        ({"queue": 4, "total": 400}, {"queue": 6, "total": 2}, "problem", "it grows: 4"),
        ({"queue": 4, "total": 400}, {"queue": 6, "total": 20}, "ok", "which came"),
    ],
)  # fmt: skip
def test_a_queue_is_a_problem_if_its_oldest_event_was_there_before_and_it_does_not_shrink(
    before: dict[str, int], after: dict[str, int], grade: str, says: str
) -> None:
    [queue] = [one for one in found(exported(**before), exported(**after)) if "in its queue" in one[1]]
    assert (queue[0], says in queue[1]) == (grade, True), queue


def test_a_stuck_queue_of_one_node_is_seen_beside_busy_nodes() -> None:
    other = 'server="b:9000"'
    before = exported(queue=50, total=1000) + exported(queue=7, total=7, node=other)
    after = exported(queue=50, total=9000) + exported(queue=8, total=8, node=other)
    graded = {text.split(" has ")[0]: grade for grade, text in found(before, after) if "queue" in text}
    assert graded == {"webhook bw on a:9000": "ok", "webhook bw on b:9000": "problem"}


def test_the_metrics_of_another_bucketwire_have_no_server() -> None:
    text = exported(failed=2, total=2).replace(f"{NODE},", "").replace(f"{{{NODE}}}", "")
    assert "webhook bw lost 2 events" in next(found(text, text))[1]


def test_losses_are_a_problem_and_say_since_when_and_what_to_do() -> None:
    text = exported(total=30, failed=3, skipped=412)
    lost = [text for grade, text in found(text, text) if grade == "problem"]
    assert [line.split(":")[0] for line in lost] == [
        "skipped 412 events since it started 1.5 m ago", "webhook bw on a",
    ]  # fmt: skip
    assert "bw on a:9000 lost 3 events since it started 1.5 m ago" in lost[1]
    assert all("bucketwire reconcile run" in line for line in lost)


def test_a_frontend_that_loses_nothing_is_well() -> None:
    text = exported(total=30)
    assert list(found(text, text)) == [("ok", "has lost no event since it started 1.5 m ago")]


def test_targets_of_other_types_are_not_ours_but_a_minio_without_a_webhook_sends_nothing() -> None:
    text = exported(total=30, failed=30, kind="kafka")
    assert [grade for grade, _ in found(text, text)] == ["problem", "ok"]
    assert "no webhook target" in next(found(text, text))[1]


def test_version_3_leaves_out_what_is_zero_and_has_no_queues() -> None:
    assert [grade for grade, _ in found("", "")] == ["note", "ok"]
    skipped = (
        f"# TYPE minio_notification_events_skipped_total counter\nminio_notification_events_skipped_total{{{NODE}}} 7\n"
    )
    errors = (
        f"# TYPE minio_notification_events_errors_total counter\nminio_notification_events_errors_total{{{NODE}}} 2\n"
    )
    lost = [text for grade, text in found("", skipped + errors) if grade == "problem"]
    assert [text.split(":")[0].split(";")[0] for text in lost] == [
        "skipped 7 events since it started", "its targets, of whatever type, lost 2 events since it started",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_a_number_of_events_that_is_none_is_refused(value: str) -> None:
    text = exported().replace('target_name="webhook"} 0', f'target_name="webhook"}} {value}')
    with pytest.raises(ValueError, match=r"integer|number"):
        parse(text)


@pytest.mark.parametrize("text", ["<html><body>not found</body></html>", "a{b=", "{}", "\x00\x01", "# TYPE a b c"])
def test_a_text_that_is_no_metrics_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^"):
        parse(text)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://minio:9000", f"http://minio:9000{CLUSTER_PATH}"),
        ("https://minio/", f"https://minio{CLUSTER_PATH}"),
        ("http://[::1]:9000", f"http://[::1]:9000{CLUSTER_PATH}"),
        ("http://root:secret@minio:9000", f"http://minio:9000{CLUSTER_PATH}"),
        ("http://minio:9000/minio/metrics/v3", "http://minio:9000/minio/metrics/v3"),
        ("http://proxy/a/metrics?node=1", "http://proxy/a/metrics?node=1"),
        ("http://[", ""),
    ],
)
def test_a_url_without_a_path_is_completed_and_credentials_are_not_kept(given: str, used: str) -> None:
    assert metrics_url(given) == used
