"""The numbers that tune the outbox: limits, batch sizes and times, each with its unit and the reason for its value.

None changes what is promised; most were measured. A policy belongs to the module of the same name.
"""

from typing import NamedTuple

from app.resources.reconciliation import MAX_FINDINGS


class DatabasePolicy(NamedTuple):
    """How long the outbox waits for its database."""

    pool_connections: int = 5  # that a pool keeps open
    max_extra_connections: int = 20  # that it opens beyond them while they are needed
    connect_seconds: int = 5
    statement_seconds: float = 20.0  # unless the settings say otherwise
    # That a statement waits for a lock. PostgreSQL waits twice, for its turn and for the row: less together than
    # `idle_transaction_seconds`, so that of clients that are gone together none gets another one's lock, for as long.
    lock_seconds: int = 4
    # After which the server ends a connection whose client says nothing, so that its locks are free: far longer than a
    # process that works takes between two statements, and short enough to end before requests have waited in vain.
    idle_transaction_seconds: int = 9
    silence_seconds: int = 20  # after which a server that acknowledges nothing is lost
    max_deadlocks: int = 3  # of a transaction, or waits for its locks, each of which is followed by another try
    repeat_seconds: float = 6.0  # after its start, in which a transaction is tried again
    clock_seconds: float = 1.0  # for which a reading of the database's clock is used


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


class RetentionPolicy(NamedTuple):
    """How events and what mirrors know of them are removed, in short transactions."""

    batch_events: int = 1000  # that a transaction checks
    max_events: int = 100_000  # that a purge removes
    revisit_seconds: float = 600.0  # after which kept events are checked again
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
    batch_partitions: int = 64  # in one statement
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
DELIVERY_TIMES = DeliveryTimesPolicy()
