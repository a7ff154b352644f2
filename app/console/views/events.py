"""Search the event log, and show one event: what happened to it at each target, and why."""

from datetime import datetime, timedelta
from typing import Any

from flask import Response, request

from app.api import Refused
from app.console import calls
from app.console.event_states import explain, has_ended, is_superseded, steps, trial
from app.console.formats import command, options, short_target
from app.console.pages import FormRefusal, action, done, form_values, page, show, visitor, within_limits
from app.events.model import EVENT_ID
from app.events.names import AGGREGATES, KNOWN
from app.events.own_events import TEST_BUCKET
from app.resources.event import STATES, describe_origin

_FILTERS = ("bucket", "prefix", "key", "events", "target", "state", "since", "before")
_FOLLOWED = ("bucket", "prefix", "key", "events", "target")  # what can be known of an event when it is recorded
_PAGE = 50
# What needs somebody comes first.
_URGENCY = ("dead", "discarded", "parked", "pending", "settled")
_HISTORY = 200  # events of the object that an event's page looks at


@page("/events")
def events() -> Response:
    """Search the log, show an object's history if a key is given, or follow what is recorded from now on."""
    following = bool(request.args.get("follow"))
    given = form_values(*(_FOLLOWED if following else _FILTERS))
    given = within_limits(given, "bucket", *(["target"] if given.get("state") else []))
    found: dict[str, Any] = {"events": [], "next": None, "searched_to": None}
    asked_id = form_values("id")["id"]
    if asked_id:
        return event(asked_id)
    after, newest = request.args.get("after", ""), ""
    with FormRefusal(400, 404) as refusal:
        if following:
            newest = _newest()  # before the search, so that no event is in neither of the two
        if given["key"]:
            history = calls.get("/v1/events", bucket=given["bucket"], key=given["key"], limit=1000, brief="true")[
                "events"
            ]
            found = {"events": history[::-1], "next": None, "searched_to": None}
        else:
            query = {name: text for name, text in given.items() if name != "key"}
            found = calls.get("/v1/events", **query, after=after, limit=_PAGE)
    return show(
        "events.html",
        here="events",
        given=given,
        filtered=any(given.values()),
        following=following,
        followed={name: given[name] for name in _FOLLOWED},
        stream={name: given[name] for name in _FOLLOWED if name != "key"} | _exactly(given["key"]),
        newest=newest,
        found=found,
        after=after,
        wrong=refusal.wrong,
        states=STATES,
        targets=[short_target(target["arn"]) for target in calls.targets()],
        names=sorted(AGGREGATES) + sorted(KNOWN),
        cli=command("event", "history", given["bucket"], given["key"]) if given["key"] and given["bucket"] else "",
    )


@page("/events/stream")
def stream() -> Response:
    """Stream events to the page that follows the log."""
    return calls.stream("/v1/events/stream", **form_values("bucket", "prefix", "events", "target", "after"))


def _newest() -> str:
    """Return the id of the log's newest event, "" if it has none or the visitor may not see it."""
    newest = [] if visitor().is_limited else calls.get("/v1/events", limit=1)["events"]
    return str(newest[0]["id"]) if newest else ""


def _exactly(key: str) -> dict[str, str]:
    """Return the filter of a stream that has at least the events of a key."""
    return {"prefix": key} if key else {}


@page("/events/<event_id>")
def event(event_id: str) -> Response:
    """Show an event: its record, its state at each target, and where it stands among the events of its object."""
    if not EVENT_ID.fullmatch(event_id):
        raise Refused(404, {"detail": "no event has such an id; an id has 32 hexadecimal digits"})
    shown = calls.get(f"/v1/events/{event_id}")
    history = calls.get("/v1/events", bucket=shown["bucket"], key=shown["key"], limit=_HISTORY, brief="true")["events"]
    targets = {target["arn"]: target for target in calls.targets()}
    newer = [each for each in history if each["seq"] > shown["seq"]]
    return show(
        "event.html",
        here="events",
        event=shown,
        origin=describe_origin(shown["origin"]) if "origin" in shown else "",
        history=history,
        newer=newer,
        states=[
            {
                **state,
                **targets.get(state["target"], {"state": ""}),
                "delivery": state["state"],
                "again": _send_again_command(shown, state) if visitor().may_change else "",
                "note": explain(state, targets.get(state["target"]), newer),
                "steps": steps(state),
                "ended": has_ended(state),
                "by": newer[-1]["id"] if newer and is_superseded(state, targets.get(state["target"])) else "",
                "test": trial(shown, state, targets.get(state["target"])) if shown["bucket"] == TEST_BUCKET else [],
            }
            for state in sorted(shown["delivery_states"], key=_urgency)
        ],
        moving=any(state["state"] in ("pending", "parked") for state in shown["delivery_states"]),
        others=[
            short_target(arn) for arn in targets if arn not in {state["target"] for state in shown["delivery_states"]}
        ],
        cli=command("event", "history", shown["bucket"], shown["key"]),
    )


def _urgency(state: dict[str, Any]) -> int:
    return _URGENCY.index(state["state"])


@action("/events/<event_id>/replay", "events/{event_id}")
def replay(event_id: str) -> Response:
    """Deliver an event to one target again, in the way that its state there needs."""
    target = form_values("target")["target"]
    shown = calls.get(f"/v1/events/{event_id}")
    state = next((each for each in shown["delivery_states"] if short_target(each["target"]) == target), None)
    return done(_send_again(shown, state, target), f"events/{event_id}")


def _send_again(shown: dict[str, Any], state: dict[str, Any] | None, target: str) -> str:
    if state is None:
        raise Refused(400, {"detail": f"no rule had sent this event to {target}"})
    if state["state"] == "parked":
        due = calls.change("POST", "/v1/retries/now", {"ids": [shown["id"]], "target": target})["due"]
        return "It is due at once." if due else "It is not retried: it waits behind another event of its object."
    if state["state"] == "dead":
        letter = _dead_letter(shown, target)
        again = calls.change("POST", "/v1/dead-letters/replay", {"ids": [letter]})["replayed"] if letter else 0
        return "The dead letter is delivered again." if again else "It is no dead letter any more."
    if state["state"] == "pending":
        return "It is not delivered yet, so there is nothing to replay."
    if state["state"] == "discarded":
        raise Refused(
            409, {"detail": f"it was discarded when it was recorded, and never goes there: {state['reason']}"}
        )
    replay = calls.change("POST", "/v1/replays", _replay(shown, target))
    return f"Replay {replay['id']} delivers it to {target} again."


def _replay(shown: dict[str, Any], target: str) -> dict[str, str]:
    """Return the selection of a replay that delivers a settled event again."""
    received = datetime.fromisoformat(shown["received_at"])
    return {
        "target": target,
        "since": _written(received),
        "before": _written(received + timedelta(milliseconds=1)),
        "bucket": shown["bucket"],
        "prefix": shown["key"],
    }


def _send_again_command(shown: dict[str, Any], state: dict[str, Any]) -> str:
    """Return the command that does what `_send_again` does, "" if there is nothing to do."""
    target = short_target(state["target"])
    match state["state"]:
        case "parked":
            return command("retry", "now", shown["id"], "--target", target)
        case "dead":
            letter = _dead_letter(shown, target)
            return command("dead-letter", "replay", str(letter)) if letter else ""
        case "settled":
            return command("replay", *options(_replay(shown, target)))
    return ""


def _dead_letter(shown: dict[str, Any], target: str) -> int | None:
    """Return the number of the event's dead letter at a target."""
    after: int | None = 0
    while after is not None:
        page_ = calls.get(
            "/v1/dead-letters", target=target, bucket=shown["bucket"], prefix=shown["key"], after=after, limit=1000
        )
        for letter in page_["dead_letters"]:
            if letter["event_id"] == shown["id"]:
                return int(letter["id"])
        after = page_["next"]
    return None


def _written(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
