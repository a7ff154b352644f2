"""List what is not delivered, and deliver it again or give it up: retried events, dead letters, and replays.

Retried events are tried again by themselves, dead letters are not. A replay delivers retained events to a target again.
"""

from collections.abc import Callable

from flask import Blueprint

from app.api.auth import ADMIN, READ, may_see, needs, require_target
from app.api.description import answers
from app.api.errors import ApiProblem
from app.api.services import reserve, services
from app.outbox.admin import replays, undelivered
from app.outbox.admin.replays import Selection
from app.outbox.admin.undelivered import Retries, RetryPlace
from app.outbox.column_values import NEVER
from app.outbox.errors import UnknownReplay
from app.resources.declaration import MAX_NUMBER, BadMember, format_time
from app.resources.undelivered import (
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterQuery,
    DeadLetterReasons,
    Due,
    GivenUp,
    NewReplay,
    Purged,
    ReasonsQuery,
    Replay,
    Replayed,
    Replays,
    Retry,
    RetryFilter,
    RetryPage,
    RetryQuery,
    failed_attempts,
)

routes = Blueprint("undelivered", __name__)
_LAST = 2**31 - 1  # the greatest number that the table can have
_NUMBER = {"number": "the replay's number"}


@routes.get("/v1/retries")
@needs(READ, limited=True)
@answers(RetryPage, "a page of events", query=RetryQuery)
def ls_retries(query: RetryQuery) -> RetryPage:
    """List the events that are retried, by target and time of the next attempt.

    Of each object the oldest undelivered event that has failed; later events of the object wait behind it. Filters are
    combined with AND. Continue with `after` set to the `next` of the previous page until it is null: a page reads a
    bounded number of events, so it may be empty and still have a next one.
    """
    require_target(query.target)
    page = Retries(services().database).page(query, limit=query.limit, after=_retry_place(query.after))
    more = ".".join(map(str, page.next)) if page.next else None
    return RetryPage(retries=[_retry(retry) for retry in page.retries], next=more)


@routes.post("/v1/retries/now")
@needs(ADMIN, limited=True)
@answers(Due, "the number of events", change=RetryFilter)
def try_now(change: RetryFilter) -> Due:
    """Make retried events due at once.

    Their attempts stay counted. Those of an unavailable target wait for it. Needs a filter, or `all`.
    """
    require_target(change.target)
    return Due(due=Retries(services().database).try_now(change))


@routes.post("/v1/retries/give-up")
@needs(ADMIN, limited=True)
@answers(GivenUp, "the number of events", change=RetryFilter)
def give_up(change: RetryFilter) -> GivenUp:
    """Make dead letters of retried events; the next event of each object is tried at once.

    Deliveries from the partitions of these events pause for up to the time of a lease. Needs a filter, or `all`.
    """
    require_target(change.target)
    return GivenUp(given_up=Retries(services().database).give_up(change))


def _retry_place(text: str) -> RetryPlace | None:
    if not text:
        return None
    try:
        numbers = [int(part) if part.isascii() and part.isdigit() else -1 for part in text[:100].split(".")]
    except ValueError:
        numbers = []
    if len(numbers) != len(RetryPlace._fields) or not all(0 <= number <= MAX_NUMBER for number in numbers):
        raise BadMember("after", "is not the `next` of a page", "leave it out for the first page")
    return RetryPlace(*numbers)


def _retry(retry: undelivered.Retry) -> Retry:
    arn = retry.target.arn(services().settings.region)
    return Retry.of(retry, target=arn, event=retry.name, history=failed_attempts(retry.history))


@routes.get("/v1/dead-letters")
@needs(READ, limited=True)
@answers(DeadLetterPage, "a page of dead letters", query=DeadLetterQuery)
def ls_dead_letters(query: DeadLetterQuery) -> DeadLetterPage:
    """List dead letters, sorted by number.

    Filters are combined with AND. Continue with `after` set to the `next` of the previous page until it is null: a page
    reads a bounded number of dead letters, so it may be empty and still have a next one.
    """
    require_target(query.target)
    region = services().settings.region
    return services().dead_letters.page(query, limit=query.limit, after=query.after, region=region, reserve=reserve)


@routes.get("/v1/dead-letters/reasons")
@needs(READ, limited=True)
@answers(DeadLetterReasons, "the reasons", query=ReasonsQuery)
def dead_letter_reasons(query: ReasonsQuery) -> DeadLetterReasons:
    """Count dead letters by target and reason, the most frequent first.

    Of the newest 20,000 dead letters; `complete` says whether these are all. At most 200 reasons.
    """
    require_target(query.target)
    return services().dead_letters.reasons(query, region=services().settings.region)


@routes.post("/v1/dead-letters/replay")
@needs(ADMIN, limited=True)
@answers(Replayed, "the number of dead letters", change=DeadLetterFilter)
def replay_dead_letters(change: DeadLetterFilter) -> Replayed:
    """Deliver dead letters again, in order per object.

    They keep their ids and history, their attempts are counted from 0 again, and they do not count against the target's
    `queue_limit`. Needs a filter, or `all`.
    """
    require_target(change.target)
    return Replayed(replayed=services().dead_letters.replay(change))


@routes.post("/v1/dead-letters/purge")
@needs(ADMIN, limited=True)
@answers(Purged, "the number of dead letters", change=DeadLetterFilter)
def purge_dead_letters(change: DeadLetterFilter) -> Purged:
    """Delete dead letters permanently; the target's counters count them as purged.

    Needs a filter, or `all`.
    """
    require_target(change.target)
    return Purged(purged=services().dead_letters.purge(change))


@routes.get("/v1/replays")
@needs(READ, limited=True)
@answers(Replays, "the replays")
def ls_replays() -> Replays:
    """List every replay, newest first."""
    listed = services().replays.list()
    return Replays(replays=[_replay(replay) for replay in listed if may_see(replay.target)])


@routes.get("/v1/replays/<int:number>")
@needs(READ, limited=True)
@answers(Replay, "the replay", path=_NUMBER)
def show_replay(number: int) -> Replay:
    """Return a replay with its progress."""
    return _one_replay(services().replays.get, number)


@routes.post("/v1/replays")
@needs(ADMIN, limited=True)
@answers(Replay, "the replay", body=NewReplay, status=201)
def begin_replay(body: NewReplay) -> Replay:
    """Deliver retained events to a target again.

    Pending events are delivered anyway and are not part of the replay. Needs a selection, or `all`. The number of
    selected events is not known in advance: `replayed` and `progress` grow while the replay runs.
    """
    require_target(body.target)
    selection = Selection(body.since, body.before, body.bucket, body.prefix, tuple(body.events))
    if selection == Selection() and body.all is not True:
        raise BadMember("all", "is not set, and no selection is", 'give a selection, or {"all": true}')
    return _replay(services().replays.begin(body.target, selection))


@routes.delete("/v1/replays/<int:number>")
@needs(ADMIN, limited=True)
@answers(Replay, "the replay", path=_NUMBER)
def cancel_replay(number: int) -> Replay:
    """Cancel a replay at its current position.

    Events that it has delivered or parked are kept. A finished replay does not change. Idempotent.
    """
    return _one_replay(services().replays.cancel, number)


def _one_replay(operation: Callable[[int], replays.Replay], number: int) -> Replay:
    """Return what an operation on the replay of this number returns. Raises `ApiProblem`."""
    try:
        require_target(services().replays.get(min(number, _LAST)).target)
        return _replay(operation(min(number, _LAST)))
    except UnknownReplay:
        require_target(None)  # a limited token does not learn which numbers there are
        raise ApiProblem("not-found", f"there is no replay {number}; GET /v1/replays shows those there are") from None


def _replay(replay: replays.Replay) -> Replay:
    chosen = replay.selection
    return Replay.of(
        replay,
        id=replay.replay_id,
        target=replay.target.arn(services().settings.region),
        since=format_time(chosen.since),
        before=None if chosen.before == NEVER else format_time(chosen.before),
        bucket=chosen.bucket,
        prefix=chosen.prefix,
        events=list(chosen.names),
        progress=round(replay.progress, 4),
    )
