"""Say why an event is in its state at a target, what has happened to it there, and how far a test event is. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.config.declared_types import is_namespace
from app.console.formats import duration, number

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
