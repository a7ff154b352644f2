"""The checks of a service that need nothing but its settings, its outbox database and its broker."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Protocol

from app.config.arn import TargetId
from app.config.settings import Settings, is_rabbitmq
from app.config.target_settings import BadSettings, warnings
from app.config.targets.base import TargetSettings
from app.doctor import Finding
from app.doctor.dependencies import check_certificates, check_old_snapshots, check_openid, check_refused
from app.doctor.processes import (
    check_api,
    check_beat,
    check_hosts,
    check_runs,
    check_schedule,
    check_spools,
    check_unscheduled,
    check_upkeep,
)
from app.logs import clause
from app.outbox import schema_version, upkeep
from app.outbox.admin.counters import TargetCounters, TargetStatus, audit, read_status
from app.outbox.declared import OPENING_FAILED, StoredTarget
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, DatabaseUnavailable, now_ms
from app.outbox.processes import HINDERED, RUNNING, has_spark_worker, is_starting, near_end, read_processes, read_queues
from app.outbox.registry import Registry
from app.outbox.schema_version import encoding_problem
from app.outbox.sources.intake import read_kept
from app.outbox.sources.rows import INVALID_SETTINGS, StoredSource, read_sources
from app.outbox.sources.watched import Watched, read_watched
from app.outbox.symptoms import NEWEST, guessed_keys, shared_names, unknown_names
from app.outbox.tokens import Tokens, check_listen
from app.outbox.upkeep import DRAIN, read_tasks
from app.quantities import count_noun, format_age, format_seconds
from app.release import VERSION
from app.resources.service import FINDING_GRADES

_MAX_DELAY = 300_000  # ms that the oldest undelivered event of a running target may wait
_GETS_EVENTS = "gets events"
_NEARLY_FULL = 0.8  # of the queue_limit
_MAX_NAMED = 5  # workers, or names of events, in one finding
_MAX_SHOWN = 80  # characters of a name
_CARRIED_INTERVALS = 2  # of the drain, within which the last one shows that the broker works
_NOT_DELIVERED = "events are accepted, but not delivered; nothing is lost"
_NOT_DRAINED = "retries, backlogs and bursts of events wait; nothing is lost"
_EVICTS_NOTHING = "noeviction"  # the policy of a Redis that refuses what it has no memory for
_MAX_COUNTED = 1_000_000  # sequence numbers in which a target's pending events are counted for a request


class Service(Protocol):
    """The service to check, as a command or an API process has it open."""

    @property
    def settings(self) -> Settings:
        """The settings of this process."""

    @property
    def database(self) -> Database:
        """The outbox."""

    @property
    def registry(self) -> Registry:
        """Targets and rules."""


Check = Callable[[Service], Iterator[Finding]]


# What else a problem explains: these checks would only find its consequences.
_OF_DATABASE = (
    "encoding",
    "snapshots",
    "api",
    "spools",
    "beat",
    "drain",
    "hosts",
    "queues",
    "versions",
    "upkeep",
    "schedule",
    "unscheduled",
    "runs",
    "targets",
    "sources",
    "delays",
    "counters",
    "newest events",
    "refused",
    "tokens",
    "certificates",
)
_FOLLOWS: Mapping[str, Collection[str]] = MappingProxyType(
    {
        "settings": ("database", "broker", "eviction", "openid", *_OF_DATABASE),
        "database": _OF_DATABASE,
        "broker": ("eviction", "beat", "drain", "hosts", "queues", "upkeep", "delays"),
        "beat": ("upkeep",),
        "drain": ("upkeep", "delays"),
    }
)
_STOPS = frozenset({"broker", "drain", "workers"})  # subjects whose problem stops the deliveries to every target


def run_checks(service: Service, describe: Callable[[Exception], str], checks: Mapping[str, Check]) -> list[Finding]:
    """Run checks, by name; the failure of one is a finding too, in the words of `describe`, and the others run.

    One cause is said once: what follows from a problem is left out, and nothing is `ok` beside a worse finding. The
    worst findings come first.
    """
    findings: list[Finding] = []
    left_out: set[str] = set()
    for name, check in checks.items():
        if name in left_out:
            continue
        try:
            found = list(check(service))
        except DatabaseUnavailable as error:
            found, left_out = [Finding("database", "problem", describe(error))], {*left_out, *_FOLLOWS["database"]}
        except Exception as error:  # noqa: BLE001 - see above
            found = [Finding(name, "problem", describe(error))]
        if any(finding.grade == "problem" for finding in found):
            left_out |= set(_FOLLOWS.get(name, ()))
        findings += found
    return sorted(_without_contradictions(findings), key=lambda finding: -FINDING_GRADES.index(finding.grade))


def _without_contradictions(findings: Sequence[Finding]) -> Iterator[Finding]:
    bad = {finding.subject for finding in findings if finding.grade in ("problem", "warning")}
    stops = bool(_STOPS & {finding.subject for finding in findings if finding.grade == "problem"})
    for finding in findings:
        is_served = finding.grade == "ok" and finding.text == _GETS_EVENTS
        if not ((finding.grade == "ok" and finding.subject in bad) or (is_served and stops)):
            yield finding


def _check_database(service: Service) -> Iterator[Finding]:
    state = schema_version.check(service.database)
    if state.problem:
        yield Finding("database", "problem", str(state), ("migrate",) if "migrate" in state.hint else ())
        return
    yield Finding("database", "ok", f"{service.database.dialect}, at revision {state.revision}")
    if state.note:
        yield Finding("schema", "note", f"the database {state.note}")


def _check_encoding(service: Service) -> Iterator[Finding]:
    with service.database.reading() as connection:
        problem = encoding_problem(connection)
    if problem is not None:
        yield Finding("database", "problem", str(problem))


def _check_broker(service: Service) -> Iterator[Finding]:
    from app.broker import BrokerUnavailable, check_broker  # noqa: PLC0415 - slow: not if `check_carried` is enough

    settings = service.settings
    try:
        yield Finding("broker", "ok", check_broker(settings.broker_url))
    except BrokerUnavailable as error:
        start = "start `bucketwire up`, or restart it if it runs"
        hint = start if settings.embedded_broker else "check BUCKETWIRE_BROKER_URL"
        yield Finding("broker", "problem", f"{_NOT_DELIVERED}. {error}; {hint}")


def check_carried(service: Service) -> Iterator[Finding]:
    """Check the broker; if a drain has just run, the broker has carried that one, and nobody has to connect.

    Loading what connects to it would be a sixth of the processor time of a short command.
    """
    at, now = None, 0
    with suppress(*DatabaseUnavailable), service.database.reading() as connection:  # another check says it
        at, now = upkeep.last_drain(connection), database_now(connection)
    if at is not None and 0 <= now - at <= _CARRIED_INTERVALS * 1000 * service.settings.drain_interval:
        yield Finding("broker", "ok", f"carried the drain {format_age(at, now)} ago")
    else:
        yield from _check_broker(service)


def _check_eviction(service: Service) -> Iterator[Finding]:
    """Report a Redis that deletes keys at its memory limit, which are queues, instead of refusing more of them."""
    if is_rabbitmq(service.settings.broker_url):
        return
    from app.broker import BrokerUnavailable, eviction_policy  # noqa: PLC0415 - slow: not for RabbitMQ

    with suppress(BrokerUnavailable):  # another check says it
        if (policy := eviction_policy(service.settings.broker_url)) not in ("", _EVICTS_NOTHING):
            text = f"the broker's maxmemory-policy is {policy}, so at its memory limit it deletes queues"
            yield Finding("eviction", "problem", f"{text}: set it to {_EVICTS_NOTHING}")


def _check_drain(service: Service) -> Iterator[Finding]:
    with service.database.reading() as connection:
        at = upkeep.last_drain(connection)
        now = database_now(connection)
        tasks = {one.name: one for one in read_tasks(connection, now, service_events=False)}
        starts = at is None and is_starting(read_processes(connection), now)
    task = tasks.get(DRAIN)
    if task is not None and task.has_failed and upkeep.drain_stopped(at, now):
        good = f"last succeeded {format_age(at, now)} ago" if at else "never succeeded"
        failed = f"failed {format_age(task.failed_at, now)} ago: {clause(task.problem)}"
        yield Finding("drain", "problem", f"{good}, and {failed}: {_NOT_DRAINED}", ("process", "ls"))
    elif starts:
        yield Finding("drain", "note", "has not run yet: the service has just begun")
    elif at is None:
        text = f"has never run: {_NOT_DRAINED}; start `bucketwire up`, or `bucketwire beat` and a worker"
        yield Finding("drain", "problem", text, ("beat",))
    elif upkeep.drain_stopped(at, now):
        hint = "is `bucketwire beat` running, and a worker that is not `--only targets`?"
        yield Finding("drain", "problem", f"last ran {format_age(at, now)} ago: {_NOT_DRAINED}; {hint}", ("beat",))
    else:
        yield Finding("drain", "ok", f"last ran {format_age(at, now)} ago")


def _check_queues(service: Service) -> Iterator[Finding]:
    with service.database.reading() as connection:
        now = database_now(connection)
        queues = read_queues(connection, read_processes(connection), now)
    for queue in queues:
        if queue.refused:
            problem = f"no worker can serve its queue, which the broker refuses: {clause(queue.refused)}"
            is_forbidden = "ACCESS_REFUSED" in queue.refused
            mend = "let the broker's user use it" if is_forbidden else "delete the queue, and it is created again"
            yield Finding(str(queue.target), "problem", f"{problem}; {mend}")
    queues = [queue for queue in queues if not queue.refused]
    unserved = [queue for queue in queues if not queue.is_served(now)]
    if len(unserved) > 1 and len(unserved) == len(queues):
        # Not since the newest target was created.
        served_at = max(queue.served_at for queue in unserved) or min(queue.created_at for queue in unserved)
        age = format_age(served_at, now)
        text = f"none has served any target's queue for {age}; is `bucketwire worker` running?"
        yield Finding("workers", "problem", text, ("worker",))
        return
    for queue in unserved:
        problem = f"no worker has served its queue for {format_age(now - queue.heartbeat_age(now), now)}"
        text = f"{problem}; start a worker that serves it (--targets)"
        yield Finding(str(queue.target), "problem", text, ("worker", "--targets", str(queue.target)))


def _check_versions(service: Service) -> Iterator[Finding]:
    with service.database.reading() as connection:
        now = database_now(connection)
        known = read_processes(connection)
    there = [one for one in known if one.state(now) in (RUNNING, HINDERED)]
    others = [one for one in there if one.version != VERSION]
    if others:
        named = ", ".join(f"{one.version} as {one.host}:{one.pid}" for one in others[:_MAX_NAMED])
        more = f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
        runs = f"{len(others)} of {_processes(len(there))} run" + ("s" if len(others) == 1 else "")
        text = f"{runs} another version than {VERSION}: {named}{more}; restart them with it"
        yield Finding("versions", "warning", text, ("process", "ls"))


def _processes(count: int) -> str:
    return f"{count:,} process" + ("" if count == 1 else "es")


def _check_targets(service: Service) -> Iterator[Finding]:
    named = {rule.rule.target for rule in service.registry.rules()}
    with service.database.snapshot() as connection:
        statuses, now = read_status(connection), database_now(connection)
    for status in statuses:
        yield from _check_target(service, status, named, now)
    if not statuses:
        yield Finding("targets", "note", "there are none; add one: `bucketwire target set TYPE:NAME KEY=VALUE …`")


def _check_target(service: Service, status: TargetStatus, named: Collection[TargetId], now: int) -> Iterator[Finding]:
    stored = status.stored
    subject = str(stored.target)
    settings = None
    try:
        if not stored.problem:
            settings = service.registry.settings(stored)
            for sentence in warnings(stored.target.type, service.registry.texts(stored)):
                yield Finding(subject, "note", sentence)
    except BadSettings as error:
        yield Finding(subject, "problem", str(error), ("target", "show", subject))
    else:
        yield from _check_state(status, now, is_named=stored.target in named)
    if settings is not None and stored.enabled:  # what a disabled one would get is neither recorded nor discarded
        yield from _check_queue_limit(subject, settings, status.counters)
    retention, has_rows = int(service.settings.retention * 1000), getattr(settings, "format", "") == "namespace"
    yield from _check_losses(status, now, retention=retention, has_rows=has_rows)


def _check_state(status: TargetStatus, now: int, *, is_named: bool) -> Iterator[Finding]:
    stored, counters = status.stored, status.counters
    subject, reason = str(stored.target), clause(stored.state_reason)
    show = ("target", "show", subject)
    match stored.state:
        case "broken":
            yield Finding(subject, "problem", f"its settings are invalid: {reason}; its events wait", show)
        case "unavailable":
            waits = "its events wait"
            if counters.undelivered:
                age = format_age(counters.oldest, now)
                waits = f"{count_noun(counters.undelivered, 'event')} waiting, the oldest {age} old"
            text = f"unavailable: {reason}; {waits}, and a worker tries it again"
            yield Finding(subject, "problem", text, ("target", "test", subject))
        case "failing":
            text = f"failing: {reason}; what it does not accept becomes a dead letter: pause it, mend it, resume it"
            yield Finding(subject, "problem", text, show)
        case "paused":
            waits = f"; {count_noun(counters.undelivered, 'event')} waiting" if counters.undelivered else ""
            text, grade = _describe_pause(stored, reason)
            yield Finding(subject, grade, text + waits, ("target", "resume", subject))
        case "disabled":
            yield Finding(subject, "note", f"disabled: {reason}" if reason else "disabled")
        case _ if stored.opening == OPENING_FAILED:
            yield Finding(subject, "warning", f"a worker could not open it: {clause(stored.opening_reason)}", show)
        case _ if not is_named:
            text = f"no rule names it, so it gets no events; add one: bucketwire rule add '*' {subject}"
            yield Finding(subject, "note", text)
        case _:
            yield Finding(subject, "ok", _GETS_EVENTS)


def _describe_pause(stored: StoredTarget | StoredSource, reason: str) -> tuple[str, str]:
    """Return why a target or a source is paused, and how bad that is: nobody need know of one that paused itself."""
    if stored.paused_itself:
        return f"has paused itself, until it is resumed: {reason}", "problem"
    return (f"paused: {reason}" if reason else "paused"), "warning"


def _check_queue_limit(subject: str, settings: TargetSettings, counters: TargetCounters) -> Iterator[Finding]:
    limit = settings.effective_queue_limit
    if limit is None or counters.queued < limit * _NEARLY_FULL:
        return
    is_full, rejects = counters.queued >= limit, settings.queue_full == "reject"
    beyond = "requests with further ones are refused" if rejects else "further ones are discarded"
    waiting = f"{count_noun(counters.queued, 'event')} of at most {limit:,} (queue_limit)"
    when, grade = ("is full", "problem") if is_full else ("is nearly full", "warning")
    text = (
        f"its queue {when}, {waiting}; {'' if is_full else 'at the limit '}{beyond}: raise it, or speed up the target"
    )
    yield Finding(subject, grade, text, ("target", "show", subject))


def _check_losses(status: TargetStatus, now: int, *, retention: int, has_rows: bool) -> Iterator[Finding]:
    stored, counters = status.stored, status.counters
    subject, discarded = str(stored.target), counters.discarded - stored.acknowledged
    if counters.dead:
        text = f"{count_noun(counters.dead, 'dead letter')}, not retried any more; mend the cause, then replay them"
        yield Finding(subject, "warning", text, ("dead-letter", "ls", "--target", subject))
    if discarded > 0:
        last = f", the last {format_age(stored.discarded_at, now)} ago" if stored.discarded_at else ""
        repair = "reconcile it with its buckets" if has_rows else "a backfill sends events of the objects that exist"
        text = (
            f"{count_noun(discarded, 'event')} discarded{last}, because its queue was full; no replay brings them "
            f"back: {repair}, then bucketwire target acknowledge {subject}"
        )
        in_log = (stored.discarded_at or now) >= now - retention
        search = ("event", "search", "--target", subject, "--state", "discarded")
        yield Finding(subject, "warning", text, search if in_log else ("target", "acknowledge", subject))


def _check_delays(service: Service) -> Iterator[Finding]:
    with service.database.snapshot() as connection:
        statuses = read_status(connection)
        now = database_now(connection)
        queues = read_queues(connection, read_processes(connection), now)
    unserved = {queue.target for queue in queues if queue.refused or not queue.is_served(now)}
    for status in statuses:
        stored, counters = status.stored, status.counters
        if stored.state == "running" and stored.target not in unserved and 0 < counters.oldest < now - _MAX_DELAY:
            text = (
                f"its oldest undelivered event is {format_age(counters.oldest, now)} old; "
                f"{count_noun(counters.undelivered, 'event')} waiting, {counters.parked:,} of them for a retry"
            )
            yield Finding(str(stored.target), "warning", text, ("retry", "ls", "--target", str(stored.target)))


def _check_sources(service: Service) -> Iterator[Finding]:
    with service.database.reading() as connection:
        now = database_now(connection)
        sources, kept, watched = read_sources(connection), read_kept(connection), read_watched(connection)
        has_spark = not any(stored.by_spark for stored in sources) or has_spark_worker(connection, now)
    for stored in sources:
        keeps = "its listings go on where they were" if stored.lists else "its messages wait in the queue"
        subject, state, reason = f"source {stored.source}", stored.state(now), clause(stored.state_reason(now))
        if stored.by_spark and stored.enabled and not has_spark:
            text = "Spark lists it, and no `bucketwire worker --only spark` is running"
            yield Finding(subject, "problem", text, ("worker", "--only", "spark"))
        if state in ("failing", "waiting"):
            role = "spark" if stored.by_spark else "sources"
            mend = ("source", "test", str(stored.source)) if state == "failing" else ("worker", "--only", role)
            text = f"{state}: {reason}; {keeps}"
            yield Finding(subject, "problem", text, mend)
        elif state == "paused":
            keeps += "" if stored.lists else ", as long as it keeps them"
            text, grade = _describe_pause(stored, reason)
            yield Finding(subject, grade, f"{text}; {keeps}", ("source", "resume", str(stored.source)))
        elif state == "running":
            does, waits = ("lists", "undecided difference") if stored.lists else ("pulls from", "waiting message")
            waiting = "" if stored.lag is None else f"; {count_noun(stored.lag, waits)}"
            who = "Spark" if stored.by_spark else "a worker"
            yield Finding(subject, "ok", f"{who} {does} it{waiting}")
            if reason:
                yield Finding(subject, "warning", reason)
        else:
            grade = "problem" if reason == INVALID_SETTINGS else "note"
            yield Finding(subject, grade, f"{state}: {reason}" if reason else state)
        if stored.notice:
            forget = ("source", "resume", str(stored.source))
            yield Finding(
                subject, "problem", f"{format_age(stored.notice_at, now)} ago: {clause(stored.notice)}", forget
            )
        listings = watched.get(stored.row_id)
        if listings and listings.bucket and stored.enabled and _may_have_left(listings, now, service):
            which = "last listing" if listings.complete else "first listing, which has not ended,"
            text = (
                f"its {which} began {format_age(listings.began_at, now)} ago, and events have left the log since:"
                " the next one finds what they reported once more"
            )
            yield Finding(subject, "warning", text, ("source", "show", str(stored.source)))
        if listings and listings.explained and (found := listings.found_since_yesterday(now)):
            text = (
                f"its listings found {count_noun(found, 'change')} since yesterday that no event explains, and events"
                " explain others: whatever sends the events of this bucket does not send all"
            )
            yield Finding(subject, "warning", text, ("source", "show", str(stored.source)))
        if count := kept.get(stored.row_id):
            listing = ("source", "rejected", "ls", str(stored.source))
            yield Finding(subject, "warning", f"{count_noun(count, 'rejected message')} kept", listing)


def _may_have_left(listings: Watched, now: int, service: Service) -> bool:
    """Return whether the log may lack events that came since a bucket was listed."""
    return listings.began_at < listings.complete_since(now, int(service.settings.retention * 1000))


def _check_counters(service: Service, most: int | None = None) -> Iterator[Finding]:
    for audited in audit(service.database, most=most):
        counters = audited.counters
        sums = (
            f"matched {counters.matched} = delivered {counters.delivered} + superseded {counters.superseded} "
            f"+ pending {counters.pending} + parked {counters.parked} + dead {counters.dead} "
            f"+ purged {counters.purged} + discarded {counters.discarded}"
        )
        if audited.counted is None:
            hint = "too many pending events to count here: `bucketwire doctor` counts them"
            yield Finding("counters", "note", f"{counters.target}: {sums}; {hint}")
        elif audited.difference:
            text = f"{counters.target} do not balance: {sums}, but the event log has {audited.counted} pending"
            yield Finding("counters", "problem", text)
        else:
            yield Finding("counters", "ok", f"{counters.target} balance: {sums}")


def _check_newest_events(service: Service) -> Iterator[Finding]:
    with service.database.reading() as connection:
        counts, guessed, shared = unknown_names(connection), guessed_keys(connection), shared_names(connection)
    if counts:
        named = ", ".join(f"{_shown(name)} ({count:,})" for name, count in islice(counts.items(), _MAX_NAMED))
        more = f" and {len(counts) - _MAX_NAMED} more" if len(counts) > _MAX_NAMED else ""
        events = count_noun(sum(counts.values()), "event")
        text = (
            f"{events} of the newest {NEWEST:,} have a name that is not known: {named}{more}; "
            "a name of a family has the family's rules and effect, any other only rules for *"
        )
        yield Finding("names", "note", text)
    if guessed.events:
        text = (
            f"{count_noun(guessed.events, 'event')} of the newest {NEWEST:,} came from a sender that is not known, and "
            "the key could be read in two ways; it was decoded: name the sender, by ?frontend= or its token"
        )
        yield Finding("keys", "warning", text, ("event", "show", guessed.newest_id))
    if of_tenants := [bucket for bucket, one in shared.items() if len(one.tenants) > 1]:
        text = (
            f"{_named(of_tenants)}: events of several of Ceph's tenants have this name and share rows; "
            "give their source, or a new token for them, tenant=arn"
        )
        yield Finding("buckets", "warning", text)
    if of_clusters := [bucket for bucket, one in shared.items() if len(one.deployments) > 1]:
        text = (
            f"{_named(of_clusters)}: events of several MinIO deployments have this name and share rows, which is right "
            "for sites that replicate it; give the source or the token of any other one its tenant"
        )
        yield Finding("buckets", "note", text)


def _named(buckets: Sequence[str]) -> str:
    named = ", ".join(_shown(bucket) for bucket in buckets[:_MAX_NAMED])
    return f"{named} and {len(buckets) - _MAX_NAMED} more" if len(buckets) > _MAX_NAMED else named


def _shown(name: str) -> str:
    return name if name.isprintable() and len(name) <= _MAX_SHOWN else repr(name[:_MAX_SHOWN])


def _check_tokens(service: Service) -> Iterator[Finding]:
    # Who may read the findings need not know the names of the tokens.
    now, ls = now_ms(), ("token", "ls")
    try:
        check_listen(service.settings, service.database)
    except BadSettings as error:
        yield Finding("tokens", "problem", f"the API does not start: {error}")
    expiring = [token for token in Tokens(service.database).list() if token.expires_at]
    if expired := sum(token.expires_at <= now for token in expiring):
        text = f"{count_noun(expired, 'token')} expired: revoke what is not needed any more"
        yield Finding("tokens", "note", text, ls)
    used = [token for token in expiring if token.is_in_use(now)]
    if soon := [token.expires_at for token in used if now >= near_end(token.created_at, token.expires_at)]:
        first = format_seconds((min(soon) - now) / 1000)
        text = f"{count_noun(len(soon), 'token')} in use will expire, the first in {first}: give its users another one"
        yield Finding("tokens", "warning", text, ls)


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "database": _check_database,
        "encoding": _check_encoding,
        "snapshots": lambda service: check_old_snapshots(service.database),
        "api": check_api,
        "spools": check_spools,
        "broker": _check_broker,
        "eviction": _check_eviction,
        "beat": check_beat,
        "drain": _check_drain,
        "hosts": check_hosts,
        "queues": _check_queues,
        "versions": _check_versions,
        "upkeep": check_upkeep,
        "schedule": check_schedule,
        "unscheduled": check_unscheduled,
        "runs": check_runs,
        "targets": _check_targets,
        "sources": _check_sources,
        "delays": _check_delays,
        "counters": _check_counters,
        "newest events": _check_newest_events,
        "refused": lambda service: check_refused(service.database),
        "tokens": _check_tokens,
        "certificates": check_certificates,
        "openid": lambda service: check_openid(service.settings),
    }
)
# Those that take a few seconds at most, however much is pending.
SHORT_CHECKS: Mapping[str, Check] = MappingProxyType(
    {**CHECKS, "counters": partial(_check_counters, most=_MAX_COUNTED)}
)
