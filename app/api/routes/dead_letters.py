"""List, replay and delete dead letters: events that are no longer retried."""

from flask import Blueprint

from app.api.description import answers
from app.api.services import reserve, services
from app.api.token_scopes import ADMIN, READ, needs, require_target
from app.resources.dead_letter import (
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterQuery,
    DeadLetterReasons,
    Purged,
    ReasonsQuery,
    Replayed,
)

routes = Blueprint("dead_letters", __name__)


@routes.get("/v1/dead-letters")
@needs(READ, limited=True)
@answers(DeadLetterPage, "a page of dead letters", query=DeadLetterQuery)
def ls(query: DeadLetterQuery) -> DeadLetterPage:
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
def reasons(query: ReasonsQuery) -> DeadLetterReasons:
    """Count dead letters by target and reason, the most frequent first.

    Of the newest 20,000 dead letters; `complete` says whether these are all. At most 200 reasons.
    """
    require_target(query.target)
    return services().dead_letters.reasons(query, region=services().settings.region)


@routes.post("/v1/dead-letters/replay")
@needs(ADMIN, limited=True)
@answers(Replayed, "the number of dead letters", change=DeadLetterFilter)
def replay(change: DeadLetterFilter) -> Replayed:
    """Deliver dead letters again, in order per object.

    They keep their ids and history, their attempts are counted from 0 again, and they do not count against the target's
    `queue_limit`. Needs a filter, or `all`.
    """
    require_target(change.target)
    return Replayed(replayed=services().dead_letters.replay(change))


@routes.post("/v1/dead-letters/purge")
@needs(ADMIN, limited=True)
@answers(Purged, "the number of dead letters", change=DeadLetterFilter)
def purge(change: DeadLetterFilter) -> Purged:
    """Delete dead letters permanently; the target's counters count them as purged.

    Needs a filter, or `all`.
    """
    require_target(change.target)
    return Purged(purged=services().dead_letters.purge(change))
