"""Search the event log, and show one event: what happened to it at each target, and why.

Why an event is in its state, and how far a test event is, is said by functions that are pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from flask import Response, request

from app.api import Refused
from app.config.declared_types import is_namespace
from app.console import session
from app.console.formats import command, duration, number, options, short_target
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
            history = session.get("/v1/events", bucket=given["bucket"], key=given["key"], limit=1000, brief="true")[
                "events"
            ]
            found = {"events": history[::-1], "next": None, "searched_to": None}
        else:
            query = {name: text for name, text in given.items() if name != "key"}
            found = session.get("/v1/events", **query, after=after, limit=_PAGE)
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
        targets=[short_target(target["arn"]) for target in session.targets()],
        names=sorted(AGGREGATES) + sorted(KNOWN),
        cli=command("event", "history", given["bucket"], given["key"]) if given["key"] and given["bucket"] else "",
    )


@page("/events/stream")
def stream() -> Response:
    """Stream events to the page that follows the log."""
    return session.stream("/v1/events/stream", **form_values("bucket", "prefix", "events", "target", "after"))


def _newest() -> str:
    """Return the id of the log's newest event, "" if it has none or the visitor may not see it."""
    newest = [] if visitor().is_limited else session.get("/v1/events", limit=1)["events"]
    return str(newest[0]["id"]) if newest else ""


def _exactly(key: str) -> dict[str, str]:
    """Return the filter of a stream that has at least the events of a key."""
    return {"prefix": key} if key else {}


@page("/events/<event_id>")
def event(event_id: str) -> Response:
    """Show an event: its record, its state at each target, and where it stands among the events of its object."""
    if not EVENT_ID.fullmatch(event_id):
        raise Refused(404, {"detail": "no event has such an id; an id has 32 hexadecimal digits"})
    shown = session.get(f"/v1/events/{event_id}")
    history = session.get("/v1/events", bucket=shown["bucket"], key=shown["key"], limit=_HISTORY, brief="true")[
        "events"
    ]
    targets = {target["arn"]: target for target in session.targets()}
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
    shown = session.get(f"/v1/events/{event_id}")
    state = next((each for each in shown["delivery_states"] if short_target(each["target"]) == target), None)
    return done(_send_again(shown, state, target), f"events/{event_id}")


def _send_again(shown: dict[str, Any], state: dict[str, Any] | None, target: str) -> str:
    if state is None:
        raise Refused(400, {"detail": f"no rule had sent this event to {target}"})
    if state["state"] == "parked":
        due = session.change("POST", "/v1/retries/now", {"ids": [shown["id"]], "target": target})["due"]
        return "It is due at once." if due else "It is not retried: it waits behind another event of its object."
    if state["state"] == "dead":
        letter = _dead_letter(shown, target)
        again = session.change("POST", "/v1/dead-letters/replay", {"ids": [letter]})["replayed"] if letter else 0
        return "The dead letter is delivered again." if again else "It is no dead letter any more."
    if state["state"] == "pending":
        return "It is not delivered yet, so there is nothing to replay."
    if state["state"] == "discarded":
        raise Refused(
            409, {"detail": f"it was discarded when it was recorded, and never goes there: {state['reason']}"}
        )
    replay = session.change("POST", "/v1/replays", _replay(shown, target))
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
        page_ = session.get(
            "/v1/dead-letters", target=target, bucket=shown["bucket"], prefix=shown["key"], after=after, limit=1000
        )
        for letter in page_["dead_letters"]:
            if letter["event_id"] == shown["id"]:
                return int(letter["id"])
        after = page_["next"]
    return None


def _written(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_WHY = {
    "behind": "It waits behind an earlier event of the same object, so that their order is kept.",
    "parked": "It failed and is tried again, after a growing and random wait.",
    "dead": "It is not tried any more: it was rejected, or ran out of attempts or of time.",
}
_ENDED = {
    "delivered": "The target has confirmed it.",
    "superseded": (
        "Superseded: a newer event of this object was known when its turn came, so it was not sent. It would have put "
        "the mirror back to an older state."
    ),
    "unchanged": "It was not sent, because it changes nothing in the mirror.",
}
_SUPERSEDED = (
    "Delivered, or superseded: the target mirrors the bucket, and a newer event of this object is known. A superseded "
    "event is not written, because it would put the mirror back to an older state."
)


@dataclass(frozen=True, slots=True)
class TrialStep:
    """One step of a test event: what is done, its state (ok, failed or waiting), and why."""

    what: str
    state: str
    why: str


def explain(state: Mapping[str, Any], target: Mapping[str, Any] | None, newer: Sequence[Mapping[str, Any]]) -> str:
    """Say in a sentence why an event is in this state at this target."""
    at_target = (target or {}).get("state", "gone")
    if state["state"] == "pending":
        return (
            "It waits for its turn." if at_target in ("running", "failing") else f"It waits: the target is {at_target}."
        )
    if state["state"] == "settled" and _last_outcome(state) in _ENDED:
        return _ENDED[_last_outcome(state)]
    if state["state"] == "settled":
        return _SUPERSEDED if newer and is_superseded(state, target) else "The target has confirmed it."
    if state["state"] == "discarded":
        return f"It was discarded when it was recorded, and never goes there: {state['reason']}."
    return _WHY["behind" if state.get("waits") else state["state"]]


def is_superseded(state: Mapping[str, Any], target: Mapping[str, Any] | None) -> bool:
    """Return whether a settled event was left out because of a newer one of its object, or may have been."""
    outcome = _last_outcome(state)
    mirrors = target is not None and is_namespace(target["type"], target["settings"])
    return state["state"] == "settled" and (outcome == "superseded" or (outcome not in _ENDED and mirrors))


def trial(event: Mapping[str, Any], state: Mapping[str, Any], target: Mapping[str, Any] | None) -> list[TrialStep]:
    """Return the steps of a test event on its way: what is done, the one that it has come to, and what it waits for."""
    recorded = TrialStep("Recorded in the event log", "ok", event["id"])
    if target is None:
        return [recorded, TrialStep("Served by a worker", "failed", "there is no such target any more")]
    opening = target["opening"]
    served = TrialStep("Served by a worker", "ok", "its events are delivered")
    if target["state"] not in ("running", "failing", "unavailable"):
        served = TrialStep(
            "Served by a worker", "waiting", f"{target['state']}: {target['reason'] or 'enable it first'}"
        )
    opened = {
        "opened": TrialStep("Connected and logged in", "ok", "with its present settings"),
        "failed": TrialStep("Connected and logged in", "failed", opening["reason"]),
    }.get(opening["state"], TrialStep("Connected and logged in", "waiting", "no worker has tried it yet"))
    if state["state"] == "settled":  # by settings that may have been changed since
        opened = TrialStep("Connected and logged in", "ok", "it has served this event")
    return [recorded, served, opened, _confirmed(state, target)]


def has_ended(state: Mapping[str, Any]) -> bool:
    """Return whether the last recorded attempt is one after which nothing is left to do."""
    return _last_outcome(state) in _ENDED


def _last_outcome(state: Mapping[str, Any]) -> str:
    """Return the outcome of the last recorded attempt; "" if there is none."""
    timeline = state.get("timeline")
    return str(timeline[-1]["outcome"]) if timeline else ""


def steps(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the attempts as steps of a timeline: from their record, else from what the event itself keeps."""
    if not state.get("timeline"):
        return [{"at": each["at"], "kind": "bad", "text": each["reason"], "more": ""} for each in state["history"]]
    return [
        {
            "at": attempt["at"],
            "kind": "good" if attempt["outcome"] in _ENDED else "bad",
            "text": attempt["outcome"] + (f": {attempt['reason']}" if attempt["reason"] else ""),
            "more": _circumstances(attempt),
        }
        for attempt in state["timeline"]
    ]


def _circumstances(attempt: Mapping[str, Any]) -> str:
    parts = [f"attempt {attempt['attempt']}"] if attempt["attempt"] else []
    parts += [f"in {duration(attempt['duration'])}"] if attempt["duration"] else []
    parts += [f"with {number(attempt['events'] - 1)} others"] if attempt["events"] > 1 else []
    parts += [f"by replay {attempt['replay']}"] if attempt["replay"] else []
    return ", ".join(parts)


def _confirmed(state: Mapping[str, Any], target: Mapping[str, Any]) -> TrialStep:
    failures = state.get("timeline") or state["history"]
    if state["state"] == "settled":
        return TrialStep("Confirmed by the target", "ok", explain(state, target, []))
    if failures and failures[-1]["reason"]:
        return TrialStep("Confirmed by the target", "failed", failures[-1]["reason"])
    if target["state"] == "unavailable":
        return TrialStep("Confirmed by the target", "failed", target["reason"])
    return TrialStep("Confirmed by the target", "waiting", explain(state, target, []))
