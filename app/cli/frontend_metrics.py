"""Check what a MinIO exports about its own notifications: events that it drops never reach this service.

Names and meanings: reference §7. MinIO computes the metrics of a path again at most every ten seconds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from prometheus_client.parser import text_string_to_metric_families

from app.cli_common.api_session import ApiSession, ApiUnavailable, InvalidToken, InvalidUrl, is_success
from app.doctor import Finding
from app.quantities import count_noun, format_age

CLUSTER_PATH = "/minio/v2/metrics/cluster"
_V3_PATHS = ("/minio/metrics/v3", "/minio/metrics/v3/notification")  # they leave out what is zero
_TIMEOUT = 10.0  # seconds to connect, and for each read
_MAX_BYTES = 64 * 2**20  # a cluster of hundreds of nodes exports a few megabytes
_FORBIDDEN = (
    "set BUCKETWIRE_FRONTEND_TOKEN to the bearer token that `mc admin prometheus generate ALIAS` prints, or start "
    f"MinIO with MINIO_PROMETHEUS_AUTH_TYPE=public; and check the path ({CLUSTER_PATH})"
)
_REPAIR = (
    "These events never reached Bucketwire: repair mirrors with `bucketwire reconcile run`, and tell other targets of "
    "the existing objects with `bucketwire backfill`"
)
_NO_WEBHOOK = (
    "has no webhook target, so it sends nothing here; if you have configured one: an invalid value in any target "
    "turns all targets off, and its log names the value"
)
_QUEUE_HINT = (
    "At queue_limit (100,000 unless set) MinIO loses new events. Check that the webhook's endpoint is this API and "
    "answers 2xx; MinIO's log has the error. If it does, one sender is too slow for these events: use several webhooks"
)


class Webhook(NamedTuple):
    """A webhook target on one node of a MinIO."""

    server: str
    name: str

    def __str__(self) -> str:
        return f"webhook {self.name} on {self.server}" if self.server else f"webhook {self.name}"


@dataclass
class WebhookMetrics:
    """What a node exports about a webhook target; counters are from the start of its process."""

    queue: int = 0  # files in queue_dir; 0 without one
    total: int = 0  # events offered to the target
    failed: int = 0  # of these, lost: not accepted by the endpoint or, with queue_dir, by the queue


@dataclass
class FrontendMetrics:
    """What a MinIO exports about its notifications, summed over the nodes that the path covers."""

    skipped: int = 0
    errors: int = 0  # of targets of all types
    started: float | None = None  # seconds since 1970, of the node that has run longest
    webhooks: dict[Webhook, WebhookMetrics] = field(default_factory=dict)
    versions: set[int] = field(default_factory=set)  # of the metrics of notifications; only 2 has targets and queues

    @property
    def queued(self) -> int:
        """The events in the queues of all webhook targets."""
        return sum(counted.queue for counted in self.webhooks.values())


class NoMetrics(Exception):
    """The URL does not answer with a MinIO's metrics; the message says what to do."""


def fetch(url: str, token: str) -> FrontendMetrics:
    """Return the metrics at a URL of `metrics_url`. Raises `NoMetrics`."""
    try:
        session = ApiSession(url, token, timeout=_TIMEOUT, max_answer_bytes=_MAX_BYTES)
    except InvalidUrl:
        raise NoMetrics(f"is not a URL; write http://host:9000{CLUSTER_PATH}") from None
    except InvalidToken as error:
        raise NoMetrics(str(error)) from None
    try:
        metrics = parse(_read(session))
    except ApiUnavailable as error:
        raise NoMetrics(str(error)) from None
    except ValueError:
        raise NoMetrics(f"has no metrics in Prometheus' text format; the path is {CLUSTER_PATH}") from None
    finally:
        session.close()
    if not metrics.versions and urlsplit(url).path.rstrip("/") not in _V3_PATHS:
        raise NoMetrics(f"has no minio_notify_… metrics; the path is {CLUSTER_PATH}")
    return metrics


def _read(session: ApiSession) -> str:
    response = session.request("GET", "")
    if response.status_code in (401, 403):
        raise NoMetrics(f"answered {response.status_code}: {_FORBIDDEN}")
    if not is_success(response):
        raise NoMetrics(f"answered {response.status_code}; the path of the metrics is {CLUSTER_PATH}")
    return response.content.decode()


def metrics_url(url: str) -> str:
    """Return the URL without credentials, and with the path of MinIO's cluster metrics if it has none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    path = parts.path if parts.path.strip("/") else CLUSTER_PATH
    return SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], path, parts.query, "").geturl()


def parse(text: str) -> FrontendMetrics:
    """Read metrics of version 2 or 3 in Prometheus' text format. Raises ValueError."""
    metrics = FrontendMetrics()
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            match name.removesuffix("_total").removeprefix("minio_"):
                case "notify_events_skipped" | "notification_events_skipped":
                    metrics.skipped += _whole(value)
                case "notify_events_errors" | "notification_events_errors":
                    metrics.errors += _whole(value)
                case "notify_events_sent":
                    metrics.versions.add(2)
                case "notification_events_sent":
                    metrics.versions.add(3)
                case "node_process_starttime_seconds" | "system_process_start_time_seconds":
                    metrics.started = min(value, metrics.started or value)
                case "notify_target_queue_length":
                    _add(metrics, labels, queue=_whole(value))
                case "notify_target_total_events":
                    _add(metrics, labels, total=_whole(value))
                case "notify_target_failed_events":
                    _add(metrics, labels, failed=_whole(value))
    return metrics


def _whole(value: float) -> int:
    try:
        return int(value)
    except OverflowError:  # infinity
        raise ValueError(f"{value} is not a number of events") from None


def _add(metrics: FrontendMetrics, labels: Mapping[str, str], **values: int) -> None:
    if labels.get("target_name") != "webhook":
        return
    webhook = Webhook(labels.get("server", ""), labels.get("target_id", ""))
    counted = metrics.webhooks.setdefault(webhook, WebhookMetrics())
    for name, value in values.items():
        setattr(counted, name, value)


def check(about: str, before: FrontendMetrics, after: FrontendMetrics, seconds: float, now: float) -> Iterator[Finding]:
    """Judge two looks at a frontend's metrics, `seconds` apart; `now` is in seconds since 1970."""
    since = "since it started"
    if after.started:
        since += f" {format_age(int(after.started * 1000), int(now * 1000))} ago"
    losses = list(_losses(after, since))
    for text in losses:
        yield Finding(about, "problem", f"{text}. {_REPAIR}")
    for webhook, counted in sorted(after.webhooks.items()):
        if counted.queue:
            earlier = before.webhooks.get(webhook, WebhookMetrics())
            yield Finding(about, *_judge_queue(webhook, earlier, counted, seconds))
    if 2 not in after.versions:
        yield Finding(about, "note", f"these metrics show no queue; {CLUSTER_PATH} does")
    elif not after.webhooks:
        yield Finding(about, "problem", _NO_WEBHOOK)
    if not losses:
        yield Finding(about, "ok", f"has lost no event {since}")


def _losses(metrics: FrontendMetrics, since: str) -> Iterator[str]:
    if metrics.skipped:
        lost = f"{count_noun(metrics.skipped, 'event')} {since}"
        yield f"skipped {lost}: its queue in memory (50,000 events) was full. Set queue_dir and sync_events=on"
    for webhook, counted in sorted(metrics.webhooks.items()):
        if counted.failed:
            lost = f"{count_noun(counted.failed, 'event')} {since}"
            yield f"{webhook} lost {lost}: without queue_dir a request failed, with one it was at queue_limit"
    if metrics.errors and 2 not in metrics.versions:
        lost = f"{count_noun(metrics.errors, 'event')} {since}"
        yield f"its targets, of whatever type, lost {lost}; {CLUSTER_PATH} shows which"


def _judge_queue(webhook: Webhook, before: WebhookMetrics, after: WebhookMetrics, seconds: float) -> tuple[str, str]:
    """Return the grade and the text of a queue that is not empty.

    MinIO looks into the queue every three seconds, so that a healthy one has what came since. A queue is a problem if
    its oldest event is older than the first look, which means that it has more than has come since, and it does not
    shrink.
    """
    came = (after.total - after.failed) - (before.total - before.failed)
    if came < 0:  # the node has been restarted, which resets its counters
        came = after.total - after.failed
    queued, earlier = f"{webhook} has {count_noun(after.queue, 'event')} in its queue", f"{seconds:.0f} s ago"
    if after.queue < before.queue:
        return "ok", f"{queued}, {before.queue - after.queue} fewer than {earlier}"
    if after.queue <= came:
        return "ok", f"{queued}, which came in the last {seconds:.0f} s"
    trend = f"and it grows: {before.queue} {earlier}" if after.queue > before.queue else f"as many as {earlier}"
    return "problem", f"{queued}, {trend}. {_QUEUE_HINT}"
