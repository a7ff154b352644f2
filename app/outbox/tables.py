"""Define the tables of the outbox: the event log, a cursor for each target and partition, and the tables around them.

Times are whole milliseconds since 1970 (UTC). `seq` numbers are assigned under the lock of `log_head`, so commits
happen in the order of `seq` and a reader can never skip a late commit.

Migrations create them, with what concerns one database alone: InnoDB and a binary collation, how full PostgreSQL makes
the pages of rows that are updated very often, and ids that SQLite never uses again where others refer to them. To name
such an option here, SQLAlchemy would import the dialects of all databases in each process.
"""

import sqlalchemy as sa

from app.outbox.column_values import NEVER, WHOLE_LOG

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LONG = 2**32 - 1  # bytes; MySQL makes it LONGTEXT, or LONGBLOB
LongText = sa.Text().with_variant(sa.Text(_LONG), "mysql", "mariadb")


log_head = sa.Table(
    "log_head",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("partitions", sa.Integer, nullable=False),  # fixed for a log, because a key must stay in its partition
    sa.Column("version", sa.BigInteger, nullable=False),  # another, random one after every change of targets or rules
    # Random, another one after a restore or a failover: with it a seq is the same event at any time.
    sa.Column("epoch", sa.CHAR(32), nullable=False, server_default=""),
    sa.Column("timeline", sa.CHAR(8), nullable=False, server_default=""),  # PostgreSQL's when the epoch began
    sa.Column("posted", sa.BigInteger, nullable=False, server_default="0"),  # events that requests have recorded
    sa.Column("arrivals_seq", sa.BigInteger, nullable=False, server_default="0"),  # up to which `arrivals` is complete
)

log_tail = sa.Table(
    "log_tail",
    metadata,
    # One row. A transaction that removes events from the log or begins a replay of them locks it (`locks.lock_tail`).
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
)

targets = sa.Table(
    "targets",
    metadata,
    # Never given to another target, once it is removed: on SQLite by AUTOINCREMENT, which the migration sets.
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("type", sa.String(32), nullable=False),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("settings", LongText, nullable=False),  # JSON object of texts, secrets sealed
    sa.Column("origin", sa.String(16), nullable=False),  # environment | stored | sample
    sa.Column("problem", sa.Text, nullable=False, default=""),  # why the settings cannot be used, else ""
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("queue_limit", sa.BigInteger, nullable=False),  # most undelivered events, or NO_LIMIT
    sa.Column("rejects", sa.Boolean, nullable=False, default=False),  # queue_full=reject
    sa.Column("paused", sa.Boolean, nullable=False, default=False),
    sa.Column("breaker", sa.String(16), nullable=False, default="closed"),  # closed | open
    sa.Column("failures", sa.Integer, nullable=False, default=0),  # consecutive times that it was unavailable
    sa.Column("resume_at", sa.BigInteger, nullable=False, default=0),  # time of an open breaker's next probe
    sa.Column("reason", sa.Text, nullable=False, default=""),  # why it is paused or its breaker is open
    sa.Column("recorded", sa.BigInteger, nullable=False, default=0),  # events recorded for it
    sa.Column("discarded", sa.BigInteger, nullable=False, default=0),  # matched, but not recorded: its queue was full
    sa.Column("purged", sa.BigInteger, nullable=False, default=0),  # dead letters that an operator deleted
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False, default=1),  # incremented when it is set or resumed
    sa.Column("opening", sa.String(16), nullable=False, default="due"),  # due | opened | failed, with these settings
    sa.Column("opening_reason", sa.Text, nullable=False, default=""),  # why it could not be opened
    sa.Column("opening_at", sa.BigInteger, nullable=False, default=0),  # when it was last tried
    sa.Column("opening_due_at", sa.BigInteger, nullable=False, default=0),  # when to try it; NEVER: it was opened
    sa.Column("opening_tries", sa.Integer, nullable=False, default=0),  # how often it was tried
    # The log's last seq when events were last recorded for it.
    sa.Column("last_seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("discarded_at", sa.BigInteger),  # when an event was last discarded; NULL: never, or before 0.3
    sa.Column(
        "acknowledged", sa.BigInteger, nullable=False, server_default="0"
    ),  # of those discarded, the first so many
    sa.Column("certificates", LongText),  # JSON of `app.outbox.processes`; NULL: none was seen
    sa.UniqueConstraint("type", "name"),
)

rules = sa.Table(
    "rules",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("bucket", sa.String(255), nullable=False, index=True),  # * = every bucket
    sa.Column("rule_id", sa.Text, nullable=False, default=""),
    sa.Column("events", sa.Text, nullable=False),  # JSON array; wildcards are not expanded
    sa.Column("prefix", sa.Text, nullable=False, default=""),
    sa.Column("suffix", sa.Text, nullable=False, default=""),
    sa.Column("filter_names", sa.String(32), nullable=False, default=""),  # comma-separated, in the client's order
    sa.Column("target_id", sa.Integer, sa.ForeignKey("targets.id"), nullable=False, index=True),
    # JSON object: the filters beside prefix and suffix, by name, and `names`, the client's order of the key's. NULL:
    # none. `filter_names` has prefix and suffix only, because code before 0.3 knows no others.
    sa.Column("filters", LongText),
)

buckets = sa.Table(
    "buckets",
    metadata,
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),  # when the service first saw it
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("partition", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("id", sa.CHAR(32), nullable=False, unique=True),
    sa.Column("key_hash", sa.BigInteger, nullable=False),
    sa.Column("received_at", sa.BigInteger, nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("bucket", sa.String(255), nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("version", sa.String(1024), nullable=False),
    sa.Column("sequencer", sa.String(64), nullable=False),  # comparable form; "" if it does not order content changes
    sa.Column("time", sa.BigInteger, nullable=False),
    sa.Column("targets", LongText, nullable=False),  # ids of the targets it goes to, as ",3,17,"; negative: discarded
    sa.Column("record", LongText, nullable=False),
    sa.Column("trace", sa.String(600), nullable=False, default=""),  # "": the event had none
    sa.Column("origin", sa.String(600), nullable=False, server_default=""),  # of `app.events.model`; "": unknown
    sa.Index(None, "key_hash", "sequencer"),
)

# Where the events of each target are in a partition (`app.outbox.log.arrivals`); a target without events has no row.
arrivals = sa.Table(
    "arrivals",
    metadata,
    sa.Column("target_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("partition", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("last_seq", sa.BigInteger, nullable=False),  # of its last event
    # The last long part of the log without events of the target: after one seq and up to another.
    sa.Column("gap_after", sa.BigInteger, nullable=False),
    sa.Column("gap_until", sa.BigInteger, nullable=False),
)

cursors = sa.Table(
    "cursors",
    metadata,
    sa.Column("target_id", sa.Integer, sa.ForeignKey("targets.id"), primary_key=True, autoincrement=False),
    sa.Column("partition", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("replay_id", sa.Integer, primary_key=True, autoincrement=False, default=WHOLE_LOG),
    sa.Column("position", sa.BigInteger, nullable=False),  # every event up to here is settled or parked
    sa.Column("until", sa.BigInteger, nullable=False, default=NEVER),  # a replay's last seq
    # The position at which a replay began.
    sa.Column("begins_after", sa.BigInteger, nullable=False, default=0),
    # Events that a replay has settled or parked so far. They count as recorded once more, when the replay reaches them.
    # When a replay finishes, its cursor is removed and its count is added to this column of the log's own cursor, which
    # counts redelivered events, too.
    sa.Column("replayed", sa.BigInteger, nullable=False, default=0),
    sa.Column("lease_token", sa.String(64), nullable=False, default=""),
    sa.Column("leased_until", sa.BigInteger, nullable=False, default=0),
    # Leases in a row, before the present one, whose holders did not release them: they were killed, or hang.
    sa.Column("lost_leases", sa.Integer, nullable=False, default=0, server_default="0"),
    sa.Column("delivered", sa.BigInteger, nullable=False, default=0),
    sa.Column("superseded", sa.BigInteger, nullable=False, default=0),
    sa.Column("dead", sa.BigInteger, nullable=False, default=0),  # in total, including those replayed or purged since
    sa.Column("failed", sa.BigInteger, nullable=False, default=0),  # attempts that failed or were rejected, in total
    # Places in the target's queue (queue_limit) that its events have freed: the settled ones, but not those that were
    # replayed, which held none.
    sa.Column("freed", sa.BigInteger, nullable=False, default=0),
    # A mirror's events up to this seq are in `object_versions`. If it is less than `position`, another policy has
    # delivered events since.
    sa.Column("folded", sa.BigInteger, nullable=False, default=0),
    sa.Column("delivered_at", sa.BigInteger),  # when the target last confirmed an event here; NULL: never
    # Attempts here that failed since the target last accepted an event, anywhere, and when the first of them did. They
    # count while the mark is the target's: any success changes that without writing these (`delivery.availability`).
    sa.Column("failed_in_row", sa.Integer),
    sa.Column("failed_since", sa.BigInteger),
    sa.Column("failed_mark", sa.BigInteger),
    sa.Index(None, "failed_in_row"),  # few cursors have failures
)

# What a mirror knows of versioned keys: one row for each version, and one for the key itself, whose id equals `object`.
# The holder of the partition's lease writes the rows; the purge adds records and deletes rows that are not needed.
object_versions = sa.Table(
    "object_versions",
    metadata,
    sa.Column("target_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("partition", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("id", sa.String(32), primary_key=True),  # digest of the key and the version
    sa.Column("object", sa.String(32), nullable=False),  # digest of bucket and key
    sa.Column("seq", sa.BigInteger, nullable=False),  # the event that the row represents
    sa.Column("sequencer", sa.String(64)),  # orders layers, with tie and placed; NULL: no layer, the version is gone
    sa.Column("tie", sa.SmallInteger, nullable=False),
    sa.Column("placed", sa.BigInteger, nullable=False),
    sa.Column("is_object", sa.Boolean, nullable=False),  # the layer is an object, or else its absence
    sa.Column("state", sa.Text, nullable=False),  # JSON of a VersionState, or of a KeyState
    sa.Column("trimmed", sa.Boolean, nullable=False),  # of a key: the purge has removed its oldest layers
    sa.Column("record", LongText),  # the event's, copied when the event left the log; "" if not needed
    sa.Index("ix_object_versions_layer", "target_id", "partition", "object", "sequencer", "tie", "placed"),
    sa.Index(None, "partition", "seq"),
)

parked = sa.Table(
    "parked",
    metadata,
    sa.Column("target_id", sa.Integer, sa.ForeignKey("targets.id"), primary_key=True, autoincrement=False),
    sa.Column("partition", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("key_hash", sa.BigInteger, nullable=False),
    sa.Column("not_before", sa.BigInteger, nullable=False),  # NEVER: waits behind an earlier event of its object
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("first_tried", sa.BigInteger, nullable=False, default=0),
    sa.Column("last_tried", sa.BigInteger, nullable=False, default=0),
    sa.Column("history", sa.Text, nullable=False, default="[]"),  # JSON: the last attempts, [time, reason]
    # Parked by a replay or a redelivery, or a replayed dead letter: holds no place in the target's queue.
    sa.Column("replayed", sa.Boolean, nullable=False, default=False),
    sa.Column("refused_at", sa.BigInteger),  # when the target last answered it "unavailable"; NULL, 0: not lately
    sa.Index(None, "target_id", "replayed"),
    sa.Index(None, "target_id", "partition", "not_before"),
    sa.Index(None, "target_id", "refused_at"),
    sa.Index(None, "target_id", "partition", "key_hash", "seq"),
    sa.Index(
        None, "target_id", "partition", "key_hash", "not_before"
    ),  # finds a head without reading the many events that wait behind it
    sa.Index(None, "partition", "seq"),  # for the purge, which keeps these events
)

# Objects whose newest event the next holder of the partition's lease parks again once it is due, because an older one
# may have been written late: by a worker without a valid lease, or by a request without an answer.
redeliveries = sa.Table(
    "redeliveries",
    metadata,
    sa.Column("target_id", sa.Integer, sa.ForeignKey("targets.id"), primary_key=True, autoincrement=False),
    sa.Column("partition", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("key_hash", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("since", sa.BigInteger, nullable=False),  # seq of the oldest event that may have been written late
    # When the object goes out next and last, in ms since 1970: at once where an older event may be there already, and
    # when one that is on its way can no longer arrive.
    sa.Column("due", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("until", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index(None, "partition", "key_hash"),  # for the purge, which keeps these events
    sa.Index(None, "due"),  # for the drain, which runs when the next one is due
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("target_id", sa.Integer, sa.ForeignKey("targets.id"), nullable=False),
    sa.Column("partition", sa.SmallInteger, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("event_id", sa.CHAR(32), nullable=False, index=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("first_tried", sa.BigInteger, nullable=False),
    sa.Column("last_tried", sa.BigInteger, nullable=False),
    sa.Column("history", sa.Text, nullable=False),
    sa.UniqueConstraint("target_id", "partition", "seq"),
    sa.Index(None, "partition", "seq"),  # for the purge, which keeps these events
)

replays = sa.Table(
    "replays",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("target_id", sa.Integer, sa.ForeignKey("targets.id"), nullable=False, index=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),  # received at or after
    sa.Column("before", sa.BigInteger, nullable=False),  # received before
    sa.Column("bucket", sa.String(255), nullable=False, default=""),
    sa.Column("prefix", sa.Text, nullable=False, default=""),
    sa.Column("events", sa.Text, nullable=False, default="[]"),  # JSON array of names, empty = all
    # Sums over the finished partitions, whose cursors are removed: events delivered again, and sequence numbers passed.
    sa.Column("replayed", sa.BigInteger, nullable=False, default=0),
    sa.Column("passed", sa.BigInteger, nullable=False, default=0),
    sa.Column("cancelled_at", sa.BigInteger, nullable=False, default=0),  # 0: not cancelled
)

# Columns that the version before writes when a run ends; a run that it has ended has no `counts`.
FORMER_COUNTS = (
    "objects", "target_rows", "missing", "stale", "orphaned", "malformed", "unmatched", "in_flight", "unreadable",
    "repaired",
)  # fmt: skip

reconciliations = sa.Table(
    "reconciliations",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run", sa.CHAR(32), nullable=False, unique=True),
    sa.Column("type", sa.String(32), nullable=False),  # of the target, which may have been removed since
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("bucket", sa.String(255), nullable=False),
    # reconcile (a backfill too) | incremental | scan | tables
    sa.Column("job", sa.String(16), nullable=False, default="reconcile"),
    sa.Column("state", sa.String(16), nullable=False),  # running | clean | drift | repaired | failed
    sa.Column("started_at", sa.BigInteger, nullable=False),
    sa.Column("alive_until", sa.BigInteger, nullable=False),  # a run that is not renewed before is dead; 0: cancelled
    sa.Column("finished_at", sa.BigInteger, nullable=False),
    sa.Column("counts", sa.Text),  # JSON object of numbers by `reconcile.runs.COUNTS`; null until the run has ended
    *(sa.Column(name, sa.BigInteger, nullable=False, default=0) for name in FORMER_COUNTS),
    sa.Column("report", sa.Text, nullable=False),  # the folder of the full report
    sa.Column("problem", sa.Text, nullable=False),
    sa.Column("repair", sa.String(8), nullable=False, default=""),  # yes | no, as requested; "": by the settings
    sa.Column("progress", sa.Text),  # JSON, while it runs
    sa.Column("prefix", sa.String(1024), nullable=False, default=""),  # only keys below it; "": all of the bucket
    # JSON of the log's position from which a later incremental run goes on; null: it cannot go on from here.
    sa.Column("position", sa.Text),
    sa.Index(None, "type", "name"),
)

# The first findings of each reconciliation.
findings = sa.Table(
    "findings",
    metadata,
    sa.Column("run", sa.CHAR(32), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("facts", LongText, nullable=False),  # JSON object, in ASCII
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),  # "*" is no token; it records that a token has existed
    sa.Column(
        "digest", sa.CHAR(64), nullable=False, unique=True
    ),  # SHA-256 of the token; tokens are random, so a plain hash is enough
    sa.Column("scopes", sa.String(255), nullable=False),
    # JSON object of `buckets` and `targets`, to which it is limited, `frontend`, `tenant`, `expires_at` (ms).
    sa.Column("limits", sa.Text, nullable=False, default=""),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("used_at", sa.BigInteger),  # ms, a minute late at most; NULL: never, or before this was recorded
)

# The newest tokens that were revoked: the answer to one of them says so, and operators see its name.
revoked_tokens = sa.Table(
    "revoked_tokens",
    metadata,
    sa.Column("digest", sa.CHAR(64), primary_key=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("revoked_at", sa.BigInteger, nullable=False, index=True),  # ms by the host's clock, as `created_at`
)

# The console's sessions that have neither expired nor been ended: `app.outbox.tokens`.
console_sessions = sa.Table(
    "console_sessions",
    metadata,
    sa.Column("id", sa.CHAR(64), primary_key=True),  # SHA-256 of the number in the browser's cookie
    sa.Column("subject", sa.CHAR(64), nullable=False),  # digest of the session's token, or of the person
    sa.Column("ends_at", sa.BigInteger, nullable=False, index=True),
    sa.Index(None, "subject", "ends_at"),
)

service_settings = sa.Table(
    "service_settings",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),  # a key of the section `api`
    sa.Column("value", sa.Text, nullable=False),
)

heartbeats = sa.Table(
    "heartbeats",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
)

# The processes of the service: workers, and the main processes of the API and of beat. Those without a default may be
# null, because versions without them record workers, too.
workers = sa.Table(
    "workers",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # HOST:PID:RANDOM, of its main process
    sa.Column("name", sa.String(255), nullable=False),  # that Celery knows, WHAT@HOST
    sa.Column("version", sa.String(64), nullable=False),  # of the code that it runs
    sa.Column("pool", sa.String(16), nullable=False),
    sa.Column("serves", sa.Text, nullable=False),  # these three are JSON arrays
    sa.Column("processes", sa.Text, nullable=False),  # ids of its pool's processes
    sa.Column("jobs", sa.Text, nullable=False),  # that it runs at the moment
    sa.Column("started_at", sa.BigInteger, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),  # of its last heartbeat
    sa.Column("refused", LongText),  # JSON object: targets whose queues the broker refuses to it, since when, and why
    sa.Column("address", sa.String(255)),  # URL at which it answers
    sa.Column("problem", sa.Text),  # why it does not do what it serves
    sa.Column("served_at", sa.BigInteger),  # of its last heartbeat without a problem
    sa.Column("ended_at", sa.BigInteger),
    sa.Column("certificate_ends_at", sa.BigInteger),  # of the one at its address, by code from before 0030
    sa.Column("certificates", LongText),  # JSON array: those that it presents and meets
)

# What came of what runs by time in the drain's process: `app.outbox.upkeep`. A time is 0 for never.
upkeep = sa.Table(
    "upkeep",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("succeeded_at", sa.BigInteger, nullable=False, default=0),
    sa.Column("failed_at", sa.BigInteger, nullable=False, default=0),
    sa.Column("problem", sa.Text, nullable=False, default=""),  # why it last failed
)

# The audit log. Entries are only added, and removed when they are older than the retention.
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("at", sa.BigInteger, nullable=False, index=True),
    sa.Column("actor", sa.String(255), nullable=False),  # token:NAME, key:NAME, local, user:NAME@HOST
    sa.Column("address", sa.String(255), nullable=False),  # of the request's client, "" for a command
    sa.Column("via", sa.String(255), nullable=False),  # the route or the command
    sa.Column("operation", sa.CHAR(32), nullable=False),  # the same for all entries of one request or command
    sa.Column("action", sa.String(32), nullable=False),
    sa.Column("resource", sa.String(255), nullable=False),
    sa.Column("details", LongText, nullable=False),  # JSON object without secrets
    sa.Index(None, "actor", "id"),
    sa.Index(None, "action", "id"),
    sa.Index(None, "resource", "id"),
)

# How many requests all API processes have answered, in total: `app.outbox.refusals`.
request_counts = sa.Table(
    "request_counts",
    metadata,
    sa.Column("route", sa.String(160), primary_key=True),  # method and template of the path; "" for no route
    sa.Column("status", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("reason", sa.String(40), primary_key=True),  # why they were refused; "": they were not
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("last_at", sa.BigInteger, nullable=False),
)

# Which requests were refused, in rows of a minute, for a day: `app.outbox.refusals`.
refusals = sa.Table(
    "refusals",
    metadata,
    sa.Column("minute", sa.BigInteger, primary_key=True, autoincrement=False),  # in which the last one was, in ms
    sa.Column("surface", sa.String(16), primary_key=True),
    sa.Column("reason", sa.String(40), primary_key=True),
    sa.Column("actor", sa.String(255), primary_key=True),  # as in the audit log; "" for nobody known
    sa.Column("status", sa.SmallInteger, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("first_at", sa.BigInteger, nullable=False),
    sa.Column("last_at", sa.BigInteger, nullable=False),
    # Of the last one: the address of its client, and what its reason concerns, such as a time, a field or a queue.
    sa.Column("address", sa.String(64), nullable=False),
    sa.Column("fact", sa.String(255), nullable=False),
)

# Samples of the targets' counters, a ring for each step: `app.outbox.series`. No foreign key: to check it, MySQL would
# lock the target's row, for which every append waits.
series = sa.Table(
    "series",
    metadata,
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),  # seconds between samples: 10 or 300
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),  # the place in the ring
    sa.Column("target_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("recorded", sa.BigInteger, nullable=False),
    sa.Column("delivered", sa.BigInteger, nullable=False),
    sa.Column("superseded", sa.BigInteger, nullable=False),
    sa.Column("failed", sa.BigInteger, nullable=False),
    sa.Column("dead_lettered", sa.BigInteger, nullable=False),
    sa.Column("discarded", sa.BigInteger, nullable=False),
    sa.Column("backlog", sa.BigInteger, nullable=False),
    sa.Column("oldest_age", sa.BigInteger),  # ms; 0: nothing waits, NULL: not measured
    sa.Column("times", sa.Text, nullable=False),  # of deliveries since the sample before: `app.outbox.series`
    sa.Index(None, "target_id", "step", "at"),
)

# Histograms of delivery times that workers have reported since the last sample. No foreign key, as above.
delivery_times = sa.Table(
    "delivery_times",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("target_id", sa.Integer, nullable=False),
    sa.Column("times", sa.Text, nullable=False),
)

# Attempts at events, a bounded number for each target: `app.outbox.admin.event_states`. No foreign key, as above.
attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("target_id", sa.Integer, nullable=False),
    sa.Column("ring", sa.SmallInteger, nullable=False),  # 0: settled, 1: failed, 2: unavailable; each has a bound
    sa.Column("partition", sa.SmallInteger, nullable=False),
    sa.Column("first_seq", sa.BigInteger, nullable=False),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("events", sa.Integer, nullable=False),
    sa.Column("duration", sa.Integer, nullable=False),  # ms
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("replay_id", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("exchange", sa.Text),  # JSON: request and answer of the last event, in bounds; NULL: there is none
    sa.Index(None, "target_id", "partition", "last_seq"),
    sa.Index(None, "target_id", "ring", "id"),
)

# What was noticed last of each target and of the service (target_id 0): `app.outbox.notices`. No foreign key, as above.
notices = sa.Table(
    "notices",
    metadata,
    sa.Column("kind", sa.String(32), primary_key=True),
    sa.Column("target_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("value", sa.BigInteger, nullable=False),
    sa.Column("notified_at", sa.BigInteger, nullable=False),  # ms; 0: never
)

# The token buckets of targets with a rate limit: `app.outbox.delivery.availability`. No foreign key, as above.
rate_limits = sa.Table(
    "rate_limits",
    metadata,
    sa.Column("target_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("used_until", sa.BigInteger, nullable=False),  # microseconds since 1970
    sa.Column("ready_at", sa.BigInteger, nullable=False),  # when enough tokens are there for a delivery (ms)
)

# What a worker pulls events from: `app.outbox.sources`. The lease is in the row, because a source has one holder.
sources = sa.Table(
    "sources",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("type", sa.String(32), nullable=False),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("settings", LongText, nullable=False),  # JSON object of texts, secrets sealed
    sa.Column("origin", sa.String(16), nullable=False),  # environment | stored
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("paused", sa.Boolean, nullable=False, default=False),
    sa.Column("reason", sa.Text, nullable=False, default=""),  # why it is paused
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False, default=1),  # incremented when it is set, paused or resumed
    sa.Column("lease_token", sa.String(64), nullable=False, default=""),
    sa.Column("leased_until", sa.BigInteger, nullable=False, default=0),
    sa.Column("failures", sa.Integer, nullable=False, default=0),  # consecutive ones, since messages were last pulled
    sa.Column("resume_at", sa.BigInteger, nullable=False, default=0),  # when to try again after a failure
    sa.Column("error", sa.Text, nullable=False, default=""),  # why it fails or waits, else ""
    sa.Column("error_at", sa.BigInteger, nullable=False, default=0),
    sa.Column("notice", sa.Text, nullable=False, default=""),  # messages that were lost before they were pulled
    sa.Column("notice_at", sa.BigInteger, nullable=False, default=0),
    sa.Column("pulled_at", sa.BigInteger, nullable=False, default=0),  # when the queue last answered
    sa.Column("messages", sa.BigInteger, nullable=False, default=0),  # that were taken, as are the following
    sa.Column("recorded", sa.BigInteger, nullable=False, default=0),  # events
    sa.Column("repeated", sa.BigInteger, nullable=False, default=0),  # events that were in the log already
    sa.Column("rejected", sa.BigInteger, nullable=False, default=0),  # messages, also those deleted or retried since
    sa.Column("lag", sa.BigInteger),  # messages that wait in the queue; NULL: unknown
    sa.Column("certificates", LongText),  # as of targets
    sa.UniqueConstraint("type", "name"),
)

# Where each bucket is, and how to log in there: `app.outbox.buckets`.
bucket_settings = sa.Table(
    "bucket_settings",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("type", sa.String(32), nullable=False),  # bucket
    sa.Column("name", sa.String(255), nullable=False),  # as events and rules have it
    sa.Column("settings", LongText, nullable=False),  # JSON object of texts, secrets sealed
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("type", "name"),
)

source_positions = sa.Table(
    "source_positions",
    metadata,
    sa.Column("source_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("share", sa.String(255), primary_key=True),  # what has an order of its own, such as a partition
    sa.Column("position", sa.String(255), nullable=False),  # up to which its events are recorded
)

# Messages without valid events, as they were pulled.
rejected_messages = sa.Table(
    "rejected_messages",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("source_id", sa.Integer, nullable=False, index=True),
    sa.Column("share", sa.String(255), nullable=False),
    sa.Column("position", sa.String(255), nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("sent_at", sa.BigInteger, nullable=False),  # the message's own time; 0: it has none
    sa.Column("headers", sa.Text, nullable=False),  # JSON object
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),  # bytes of the body
    sa.Column("body", sa.LargeBinary().with_variant(sa.LargeBinary(_LONG), "mysql", "mariadb"), nullable=False),
)

# Buckets that are listed as sources, and how far the last complete listing came: `app.outbox.sources.watched`.
watched_buckets = sa.Table(
    "watched_buckets",
    metadata,
    sa.Column("source_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("complete", sa.Boolean, nullable=False),  # whether any listing was compared to its end
    sa.Column("began_at", sa.BigInteger, nullable=False),  # of the last complete listing, else of the first try
    sa.Column("ended_at", sa.BigInteger, nullable=False),  # of the last complete listing, as is the next
    sa.Column("store_time", sa.BigInteger, nullable=False),  # by the store's own clock, when it began; 0: unknown
    sa.Column("due_at", sa.BigInteger, nullable=False),  # when to list it next; 0: at once
    sa.Column("seq", sa.BigInteger, nullable=False),  # the log's last one when the last complete listing began
    sa.Column("objects", sa.BigInteger, nullable=False),
    sa.Column("pending", sa.BigInteger, nullable=False),  # differences that are not decided yet
    sa.Column("listings", sa.BigInteger, nullable=False),  # in total, as are the following
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("explained", sa.BigInteger, nullable=False),  # differences that events explain
    sa.Column("created", sa.BigInteger, nullable=False),  # objects that no event explains, of which events were made
    sa.Column("changed", sa.BigInteger, nullable=False),
    sa.Column("removed", sa.BigInteger, nullable=False),
    # Of the last three by the day (since 1970, in UTC) on which any was found last, and on the day before that.
    sa.Column("day", sa.BigInteger, nullable=False),
    sa.Column("found_on_day", sa.BigInteger, nullable=False),
    sa.Column("found_before", sa.BigInteger, nullable=False),
    sa.Column("asked", sa.BigInteger, nullable=False),  # removals that an operator is asked to approve; 0: none
    sa.Column("bucket", sa.String(255), nullable=False, server_default=""),  # as in events; "": no listing has begun
    sa.Column("skipped", sa.BigInteger, nullable=False, server_default="0"),  # entries that no event can have
    # When it was made due after the log had kept none of its events for some time; 0: not since the last listing.
    sa.Column("lapsed_at", sa.BigInteger, nullable=False, server_default="0"),
)

# What is known of a watched bucket, in the order of keys: a chunk has the keys from `first` on.
watched_chunks = sa.Table(
    "watched_chunks",
    metadata,
    sa.Column("source_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("first", sa.LargeBinary, nullable=False),  # in UTF-8, whose bytes have S3's order
    sa.Column("body", sa.LargeBinary().with_variant(sa.LargeBinary(_LONG), "mysql", "mariadb"), nullable=False),
)
