"""The numbers that tune the outbox: limits, batch sizes and times, each with its unit and the reason for its value.

None changes what is promised; most were measured. A policy belongs to the module of the same name.
"""

from typing import NamedTuple

from app.resources.reconciliation import MAX_FINDINGS


class DatabasePolicy(NamedTuple):
    """How long the outbox waits for its database.

    One rule orders these times. A wait for a lock ends by the server's answer, before the patience of its connection is
    over (`lock_seconds_within`). Where a statement is given up earlier, as its caller cannot wait for that, this says
    nothing of other connections: each is asked, within `ping_seconds`, before it is used again.
    """

    pool_connections: int = 5  # that a pool keeps open
    max_extra_connections: int = 20  # that it opens beyond them while they are needed
    connect_seconds: int = 5
    statement_seconds: float = 20.0  # unless the settings say otherwise
    # That a statement waits for a lock. PostgreSQL waits twice, for its turn and for the row: less together than
    # `idle_transaction_seconds`, so that of clients that are gone together none gets another one's lock, for as long.
    lock_seconds: int = 4
    ping_seconds: float = 1.0  # for an answer of a connection of which it is not known whether it is lost
    # After which the server ends a connection whose client says nothing, so that its locks are free: far longer than a
    # process that works takes between two statements, and short enough to end before requests have waited in vain.
    idle_transaction_seconds: int = 9
    silence_seconds: int = 20  # after which a server that acknowledges nothing is lost
    max_deadlocks: int = 3  # of a transaction, or waits for its locks, each of which is followed by another try
    repeat_seconds: float = 6.0  # after its start, in which a transaction is tried again
    clock_seconds: float = 1.0  # for which a reading of the database's clock is used

    def lock_seconds_within(self, patience: float | None) -> int:
        """Return for how long a statement may wait for a lock on a connection with this patience (s); at least 1."""
        return self.lock_seconds if patience is None else max(1, min(self.lock_seconds, int((patience - 0.5) / 2)))


class AppendPolicy(NamedTuple):
    """How events are recorded."""

    # That the thread which commits posts waits for an answer at most: their requests have given up by then, and a
    # connection that the network has forgotten must not keep the next ones waiting.
    statement_seconds: float = 12.0
    max_trip_events: int = 200  # in one round trip; for more, COPY is faster in spite of its round trips
    min_copied_rows: int = 8  # with fewer, the extra round trip costs more than COPY saves
    copy_bytes: int = 1 << 18  # that the driver sends at once
    max_group_events: int = 10_000  # of the requests that share a transaction
    max_group_bytes: int = 1 << 24  # of their records
    spare_seconds: float = 1.2  # that a request which commits itself keeps for a second try
    max_unlocked_matches: int = 3  # of the same events with rules that keep changing; then under the lock
    max_tries: int = 2  # of a request, each followed by a write that must succeed, before it counts as refused
    max_known_buckets: int = 100_000  # that a process remembers


class ArrivalsPolicy(NamedTuple):
    """What is remembered of a target's events, and how those are found that older code has recorded."""

    # Of events of other targets: to read fewer of them costs little. PostgreSQL's function has it too (migration 0020).
    min_gap_seqs: int = 1_000
    batch_seqs: int = 5_000  # in one transaction: it locks the head of the log, so that intake waits
    max_read_seqs: int = 100_000


class ReadPolicy(NamedTuple):
    """How many bytes of records are read at a time: an event may have 20 MiB."""

    batch_bytes: int = 16 * 2**20  # of the records in one batch, page or round
    small_record_bytes: int = 8 * 2**10  # are read with their rows; the most common records have 1 to 2 KB


class SpoolPolicy(NamedTuple):
    """How requests are spooled, and recorded later."""

    max_file_bytes: int = 1 << 24  # of records, unless a single request has more
    max_readable_bytes: int = 1 << 28  # of a file, unless the settings allow longer bodies: four times what one has
    batch_files: int = 500  # of one commit; only a refused file is split
    batch_events: int = 5000
    pause_seconds: float = 0.5  # between checks of the folder, and between tries to reach the database
    waiting_ms: int = 10_000  # after which a file that is not recorded is a finding
    old_ms: int = 300_000  # after which it is a problem


class RetentionPolicy(NamedTuple):
    """How events and what mirrors know of them are removed, in short transactions."""

    batch_events: int = 1000  # that a transaction checks
    max_events: int = 100_000  # that a purge removes
    revisit_seconds: float = 600.0  # after which kept events are checked again
    # After which a listing that is due no longer keeps its bucket's events: a night in which nobody lists it, and no
    # pause by which the log grows without an end.
    overdue_listing_ms: int = 86_400_000
    max_layers: int = 16  # the newest ones of a key that are kept after their events have left the log
    batch_layers: int = 2000  # of a key that one batch checks
    batch_version_rows: int = 1000  # that are dropped at a time


class SearchPolicy(NamedTuple):
    """How far a page of a search reads, whatever it finds."""

    window_seqs: int = 10_000  # that one query reads
    first_window_seqs: int = 500  # that the first query of a page reads; the next ones read more
    max_seqs: int = 100_000  # or dead letters or parked events
    max_seconds: float = 0.15  # after which it reads no more than `min_seqs`
    min_seqs: int = 2_000
    batch_events: int = 500  # of one query
    batch_rows: int = 100  # parked events or dead letters of each partition in one query
    clock_margin_ms: int = 1_000  # by which the times of events may contradict their order: several processes date them


class ReconcilePolicy(NamedTuple):
    """Limits of the schedule of reconciliations and of what is kept of a run."""

    max_buckets: int = 1_000  # of one target: each has its own run, and posted events can name any number of buckets
    bucket_rows: int = 10  # that are read for each of them: most names are valid
    max_delay_ms: int = 3_600_000  # within which a run that became due while the service was down is registered
    max_wait_ms: int = 600_000  # for which a due run may not have begun, where a Spark worker is there
    max_findings: int = MAX_FINDINGS  # of a run; the report has all of them


class NoticePolicy(NamedTuple):
    """Limits of the events about the service."""

    batch_events: int = 100  # in one transaction: it locks the head of the log, so that intake waits
    unpulled_ms: int = 30_000  # after which a source that fails or waits counts as unavailable, and not as restarted
    max_own_letters: int = 1000  # far more events about the service than can die between two reports


class AuditPolicy(NamedTuple):
    """Limits of the audit log."""

    max_items: int = 100  # of a list in the details
    max_item_characters: int = 1000  # of a text in them
    max_column_characters: int = 255
    batch_purged: int = 1000  # entries


class SessionPolicy(NamedTuple):
    """Limits of the console's sessions."""

    max_sessions: int = 100  # of one token or person
    batch_expired: int = 100  # sessions that one sign-in removes


class TokenPolicy(NamedTuple):
    """Limits of an API token."""

    max_names: int = 100  # of buckets, and of targets
    max_bucket_characters: int = 255
    use_interval_ms: int = 60_000  # between two records of the same token's use
    in_use_ms: int = 7 * 86_400_000  # after a use that a token counts as in use
    # Between two reads because of a token that is not known, which may be a new one, or a guess: for guesses without
    # end the table is read 20 times a second, and so many threads wait for that.
    new_pause_seconds: float = 0.05
    max_waiting_for_new: int = 4


class RefusalPolicy(NamedTuple):
    """How requests are counted, and what is kept and shown of those that were refused."""

    statement_seconds: float = 9.0  # that storing may take; longer than a wait for locks
    flush_seconds: float = 5.0  # after a refusal, until it is stored; also between two tries to reach the database
    count_seconds: float = 15.0  # after an answer, until it is stored: the usual interval of Prometheus
    line_seconds: float = 60.0  # between two log lines, and two entries of the audit log, about the same
    # Of refusals that differ by surface, reason or actor, in each process; others share a row and a line. Many tokens
    # that are refused at once are those of one cause.
    max_kinds: int = 200
    window_ms: int = 300_000  # for which a refusal is a finding
    kept_ms: int = 86_400_000
    max_rows: int = 5_000  # that a finding reads
    batch_minutes: int = 60  # whose rows one transaction removes
    max_actor_characters: int = 255
    max_fact_characters: int = 255
    max_revoked: int = 1_000  # revoked tokens that are known by their names
    batch_revoked: int = 100  # that a revocation forgets


class DeliveryTimesPolicy(NamedTuple):
    """How delivery times are collected."""

    batch_reports: int = 10_000  # that one sample takes


DATABASE = DatabasePolicy()
APPEND = AppendPolicy()
ARRIVALS = ArrivalsPolicy()
READ = ReadPolicy()
SPOOL = SpoolPolicy()
RETENTION = RetentionPolicy()
SEARCH = SearchPolicy()
RECONCILIATIONS = ReconcilePolicy()
NOTICES = NoticePolicy()
AUDIT = AuditPolicy()
SESSIONS = SessionPolicy()
TOKENS = TokenPolicy()
REFUSALS = RefusalPolicy()
DELIVERY_TIMES = DeliveryTimesPolicy()


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

    # That failed without a success: one bad event alone makes fewer in its first seconds. By the default back-off it
    # makes so many in about 8 s; if no other event is delivered by then, the target counts as failing for it.
    min_attempts: int = 5
    max_reasons: int = 100  # targets whose last reason is looked up, one query each


class FutureTimePolicy(NamedTuple):
    """How far ahead of the clock a stored time can be, if no clock was ahead when it was stored."""

    tolerance_ms: int = 60_000  # that clocks, or the readings of one, may differ by
    max_retry_after_ms: int = 900_000
    max_opening_pause_ms: int = 3_600_000
    run_lease_ms: int = 60_000


class HeartbeatPolicy(NamedTuple):
    """How often the processes record heartbeats, and when a part of the service counts as stopped."""

    interval_ms: int = 5_000  # between two heartbeats of a process
    retry_ms: int = 10_000  # after one that could not be recorded: the wait for it holds up a worker's main process
    patience_seconds: float = 3.0  # for which a heartbeat may do that
    silence_ms: int = 30_000  # after which a worker or beat counts as silent; several heartbeats may be late
    api_silence_ms: int = 20_000  # after which an API does: others say within 30 s that it is gone
    # After which nobody serves a queue. A worker that is restarted ends its batch and starts, which takes less.
    unserved_ms: int = 45_000
    drain_silence_ms: int = 30_000  # after which the drain counts as stopped; its longest interval is 10 s
    kept_ms: int = 86_400_000  # for which a process that has ended or fell silent is remembered
    max_ended: int = 200  # of which so many are, if they end more often
    max_refused_reasons: int = 100  # of the queues that the broker refuses to a worker; the others are only named
    max_reason_characters: int = 300


class CertificatePolicy(NamedTuple):
    """What is kept of the certificates that connections meet, and when the end of one, or of a token, is near."""

    max_names: int = 100  # of a target or source, those that end first
    max_name_characters: int = 255
    # Before its end that one is a finding: authorities may take weeks for another. Of a short life it is the last
    # quarter, because programs that renew by themselves do so after two thirds.
    notice_ms: int = 21 * 86_400_000
    notice_share: int = 4
    alert_ms: int = 14 * 86_400_000  # before its end that there is an alert, or the same share
    token_alert_ms: int = 7 * 86_400_000  # likewise for tokens
    gone_ms: int = 3 * 86_400_000  # not met for so long while others were: each near its end is looked at once a day


class UpkeepPolicy(NamedTuple):
    """How what runs by time is watched."""

    grace_ms: int = 60_000  # after it was due, until it counts as overdue
    statement_seconds: float = 9.0  # that a record may take: longer than a wait for locks
    record_seconds: float = 30.0  # between two records of a task's successes, if none failed between them


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
    # In a row, after which the events of a partition are sent one by one. A crash of the host loses one, and costs
    # no event an attempt.
    max_lost: int = 2


class PartitionReadPolicy(NamedTuple):
    """How much is read for a batch."""

    max_replay_seqs: int = 10_000  # that one query of a replay scans
    few_objects: int = 64  # with more due objects than this, one event of each makes a batch
    max_windows: int = 10  # of other targets' events that one batch scans in each partition


class OpeningPolicy(NamedTuple):
    """When targets are opened that were set."""

    first_pause_ms: int = 10_000  # until a target is tried again, unless it was opened
    max_pause_ms: int = 3_600_000
    batch_targets: int = 10  # for which one drain wakes workers: it asks the broker for each


DEAD_LETTERS = DeadLetterPolicy()
RETRIES = RetryListPolicy()
REDELIVERY = RedeliveryPolicy()
REPLAYS = ReplayPolicy()
REMOVAL = RemovalPolicy()
ATTEMPTS = AttemptRecordPolicy()
FAILING = FailingPolicy()
FUTURE_TIMES = FutureTimePolicy()
HEARTBEATS = HeartbeatPolicy()
CERTIFICATES = CertificatePolicy()
UPKEEP = UpkeepPolicy()
DUE_WORK = DueWorkPolicy()
LEASES = LeasePolicy()
PARTITION_READS = PartitionReadPolicy()
OPENINGS = OpeningPolicy()
