"""The numbers that tune how delivery state is listed and changed, each with its unit and the reason for its value.

None changes what is promised. A policy belongs to the module of the same name.
"""

from typing import NamedTuple


class DeadLetterPolicy(NamedTuple):
    """How far a page of dead letters reads, whether they match the filter or not."""

    window_letters: int = 5_000  # of one query
    max_letters: int = 100_000
    max_seconds: float = 0.1  # after which a page reads no more than `min_letters`
    min_letters: int = 10_000


class RetryListPolicy(NamedTuple):
    """How far a page of retried events reads, whether they match the filter or not."""

    batch_heads: int = 500  # of one query
    max_heads: int = 10_000
    min_counted_heads: int = 100  # that one query counts for, because an empty one has a cost, too


class RedeliveryPolicy(NamedTuple):
    """How redeliveries are requested and carried out."""

    # Until then a request without an answer may arrive: Linux repeats unacknowledged bytes for 15.4 minutes
    # (tcp_retries2).
    latest_arrival_ms: int = 16 * 60_000
    batch_objects: int = 100  # in one transaction, which blocks purges and new replays
    page_events: int = 200  # of an object that are read together


class ReplayPolicy(NamedTuple):
    """Limits of what a replay selects."""

    max_names: int = 1_000
    max_bucket_characters: int = 255


class RemovalPolicy(NamedTuple):
    """How a target with a backlog is removed."""

    batch_events: int = 1_000  # parked events and dead letters that one transaction deletes


class AttemptRecordPolicy(NamedTuple):
    """What is kept of the attempts at each target."""

    max_rows: int = 20_000  # in each ring of a target
    max_exchange_characters: int = 8 << 20  # of the requests and answers in each ring of a target; else up to 240 MB
    max_reason_characters: int = 500
    max_read_attempts: int = 100  # at one event at one target


class FailingPolicy(NamedTuple):
    """When a target counts as failing."""

    min_attempts: int = 5  # that failed without a success: one bad event alone makes fewer in its first seconds
    max_reasons: int = 100  # targets whose last reason is looked up, one query each


class FutureTimePolicy(NamedTuple):
    """How far ahead of the clock a stored time can be, if no clock was ahead when it was stored."""

    tolerance_ms: int = 60_000  # that clocks, or the readings of one, may differ by
    max_retry_after_ms: int = 900_000
    max_opening_pause_ms: int = 3_600_000
    run_lease_ms: int = 60_000


class HeartbeatPolicy(NamedTuple):
    """How often heartbeats are recorded, and when a part of the service counts as stopped."""

    interval_ms: int = 15_000  # between two probes of a queue that is served
    min_interval_ms: int = 200  # between two of any queues: of a thousand that nobody serves each is probed less often
    max_interval_ms: int = 3_600_000  # between two of a queue that nobody serves
    unserved_ms: int = 300_000  # without an answer, after which a queue counts as not served by any worker
    drain_silence_ms: int = 30_000  # after which the drain counts as stopped; its longest interval is 10 s
    worker_interval_ms: int = 15_000  # between two heartbeats of a worker
    worker_silence_ms: int = 60_000  # after which a worker counts as gone
    worker_kept_ms: int = 3_600_000  # for which one that is gone is still listed
    worker_patience_seconds: float = 3.0  # for which a heartbeat may hold up a worker's main process


class DueWorkPolicy(NamedTuple):
    """How the partitions with due work are searched and grouped."""

    remember_seconds: float = 300.0  # for which targets without events count as such, however the log has changed
    limited_interval_ms: int = 100  # between two wake-ups for a target whose rate limit is in use
    busy_events: int = 20  # with so many waiting a partition is claimed alone, otherwise together with others
    max_quiet_partitions: int = 64  # in one claim; more cost more to search than they save


class LeasePolicy(NamedTuple):
    """How partitions are claimed."""

    probe_begins_ms: int = 1_000  # for which a worker keeps the others from probing, until it has claimed a partition
    max_tries: int = 4  # of one claim; each fails only because another worker has just claimed some of the partitions


class PartitionReadPolicy(NamedTuple):
    """How much is read for a batch."""

    max_replay_seqs: int = 10_000  # that one query of a replay scans
    few_objects: int = 64  # with more due objects than this, one event of each makes a batch
    max_windows: int = 10  # of other targets' events that one batch scans in each partition


class OpeningPolicy(NamedTuple):
    """When targets are offered to the workers to be opened."""

    first_pause_ms: int = 10_000  # until a target is offered again, unless it was opened
    max_pause_ms: int = 3_600_000
    postponed_ms: int = 2_000  # until one is offered again that no worker process could take
    batch_offers: int = 10  # of one call, which holds up the drain
    max_seconds: float = 0.2  # of that call


DEAD_LETTERS = DeadLetterPolicy()
RETRIES = RetryListPolicy()
REDELIVERY = RedeliveryPolicy()
REPLAYS = ReplayPolicy()
REMOVAL = RemovalPolicy()
ATTEMPTS = AttemptRecordPolicy()
FAILING = FailingPolicy()
FUTURE_TIMES = FutureTimePolicy()
HEARTBEATS = HeartbeatPolicy()
DUE_WORK = DueWorkPolicy()
LEASES = LeasePolicy()
PARTITION_READS = PartitionReadPolicy()
OPENINGS = OpeningPolicy()
