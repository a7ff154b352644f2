"""List the events that are retried, have them tried at once, or give them up."""

from flask import Blueprint

from app.api.description import answers
from app.api.services import services
from app.api.token_scopes import ADMIN, READ, needs, require_target
from app.outbox.admin import retries
from app.outbox.admin.retries import Retries, RetryPlace
from app.resources.dead_letter import failed_attempts
from app.resources.declaration import MAX_NUMBER, BadMember
from app.resources.retry import Due, GivenUp, Retry, RetryFilter, RetryPage, RetryQuery

routes = Blueprint("retries", __name__)


@routes.get("/v1/retries")
@needs(READ, limited=True)
@answers(RetryPage, "a page of events", query=RetryQuery)
def ls(query: RetryQuery) -> RetryPage:
    """List the events that are retried, by target and time of the next attempt.

    Of each object the oldest undelivered event that has failed; later events of the object wait behind it. Filters are
    combined with AND. Continue with `after` set to the `next` of the previous page until it is null: a page reads a
    bounded number of events, so it may be empty and still have a next one.
    """
    require_target(query.target)
    page = Retries(services().database).page(query, limit=query.limit, after=_place(query.after))
    more = ".".join(map(str, page.next)) if page.next else None
    return RetryPage(retries=[_retry(retry) for retry in page.retries], next=more)


@routes.post("/v1/retries/now")
@needs(ADMIN, limited=True)
@answers(Due, "the number of events", change=RetryFilter)
def now(change: RetryFilter) -> Due:
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


def _place(text: str) -> RetryPlace | None:
    if not text:
        return None
    try:
        numbers = [int(part) if part.isascii() and part.isdigit() else -1 for part in text[:100].split(".")]
    except ValueError:
        numbers = []
    if len(numbers) != len(RetryPlace._fields) or not all(0 <= number <= MAX_NUMBER for number in numbers):
        raise BadMember("after", "is not the `next` of a page", "leave it out for the first page")
    return RetryPlace(*numbers)


def _retry(retry: retries.Retry) -> Retry:
    arn = retry.target.arn(services().settings.region)
    return Retry.of(retry, target=arn, event=retry.name, history=failed_attempts(retry.history))
