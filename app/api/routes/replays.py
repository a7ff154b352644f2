"""Begin, list and cancel replays: deliver retained events to a target again."""

from collections.abc import Callable

from flask import Blueprint

from app.api.description import answers
from app.api.errors import ApiProblem
from app.api.services import services
from app.api.token_scopes import ADMIN, READ, may_see, needs, require_target
from app.outbox.admin import replays
from app.outbox.admin.replays import Selection
from app.outbox.column_values import NEVER
from app.outbox.errors import UnknownReplay
from app.resources.declaration import BadMember, format_time
from app.resources.replay import NewReplay, Replay, Replays

routes = Blueprint("replays", __name__)
_LAST = 2**31 - 1  # the greatest number that the table can have
_NUMBER = {"number": "the replay's number"}


@routes.get("/v1/replays")
@needs(READ, limited=True)
@answers(Replays, "the replays")
def ls() -> Replays:
    """List every replay, newest first."""
    listed = services().replays.list()
    return Replays(replays=[_resource(replay) for replay in listed if may_see(replay.target)])


@routes.get("/v1/replays/<int:number>")
@needs(READ, limited=True)
@answers(Replay, "the replay", path=_NUMBER)
def show(number: int) -> Replay:
    """Return a replay with its progress."""
    return _one(services().replays.get, number)


@routes.post("/v1/replays")
@needs(ADMIN, limited=True)
@answers(Replay, "the replay", body=NewReplay, status=201)
def begin(body: NewReplay) -> Replay:
    """Deliver retained events to a target again.

    Pending events are delivered anyway and are not part of the replay. Needs a selection, or `all`. The number of
    selected events is not known in advance: `replayed` and `progress` grow while the replay runs.
    """
    require_target(body.target)
    selection = Selection(body.since, body.before, body.bucket, body.prefix, tuple(body.events))
    if selection == Selection() and body.all is not True:
        raise BadMember("all", "is not set, and no selection is", 'give a selection, or {"all": true}')
    return _resource(services().replays.begin(body.target, selection))


@routes.delete("/v1/replays/<int:number>")
@needs(ADMIN, limited=True)
@answers(Replay, "the replay", path=_NUMBER)
def cancel(number: int) -> Replay:
    """Cancel a replay at its current position.

    Events that it has delivered or parked are kept. A finished replay does not change. Idempotent.
    """
    return _one(services().replays.cancel, number)


def _one(operation: Callable[[int], replays.Replay], number: int) -> Replay:
    """Return what an operation on the replay of this number returns. Raises `ApiProblem`."""
    try:
        require_target(services().replays.get(min(number, _LAST)).target)
        return _resource(operation(min(number, _LAST)))
    except UnknownReplay:
        require_target(None)  # a limited token does not learn which numbers there are
        raise ApiProblem("not-found", f"there is no replay {number}; GET /v1/replays shows those there are") from None


def _resource(replay: replays.Replay) -> Replay:
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
