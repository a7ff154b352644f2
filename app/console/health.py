"""What is wrong with the service, in the order in which to mend it. Pure: it judges the answers of the API."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.console.formats import command, duration, number, short_target, target_path

_SLOW = 300  # seconds that the oldest undelivered event of a running target may wait


@dataclass(frozen=True, slots=True)
class Ailment:
    """One thing that is wrong: what, what to do, the page where it is done, and the command that does it."""

    grade: str  # problem or warning
    what: str
    remedy: str
    path: str = ""
    command: str = ""


def ailments(
    status: Mapping[str, Any], targets: Sequence[Mapping[str, Any]], queues: Sequence[Mapping[str, Any]]
) -> list[Ailment]:
    """Return everything that needs an operator, what stops all targets first."""
    return [
        *_of_service(status),
        *(found for target in targets for found in _of_target(target)),
        *(found for queue in queues for found in _of_queue(queue, targets)),
    ]


def _of_service(status: Mapping[str, Any]) -> Iterator[Ailment]:
    for name, check in status["checks"].items():
        if not check["ok"]:
            reason = check.get("reason") or ", ".join(f"{key} {value}" for key, value in check.items() if key != "ok")
            yield Ailment("problem", f"The {name} is not in order", reason, "workers", command("doctor"))


def _of_target(target: Mapping[str, Any]) -> Iterator[Ailment]:
    name, path, events = short_target(target["arn"]), target_path(target["arn"]), target["events"]
    because = f": {target['reason']}" if target["reason"] else ""
    waiting = events["pending"] + events["parked"]
    match target["state"]:
        case "unavailable":
            remedy = (
                "Its events wait and lose no attempt; it is tried again every few seconds. Mend it, or its settings."
            )
            yield Ailment("problem", f"{name} is unavailable{because}", remedy, path, command("target", "test", name))
        case "failing":
            remedy = "What it does not accept becomes a dead letter. Pause it, mend it or its settings, then resume it."
            yield Ailment("problem", f"{name} is failing{because}", remedy, path, command("target", "show", name))
        case "broken":
            remedy = "Correct its settings."
            yield Ailment(
                "problem", f"{name} has unusable settings{because}", remedy, path, command("target", "show", name)
            )
        case "paused":
            remedy = f"{number(waiting)} events wait. Resume it when it may get events again."
            yield Ailment("warning", f"{name} is paused{because}", remedy, path, command("target", "resume", name))
        case "running" if (target["oldest_age"] or 0) > _SLOW:
            what = f"The oldest undelivered event of {name} is {duration(target['oldest_age'])} old"
            remedy = f"{number(waiting)} events wait, {number(events['parked'])} of them for a retry."
            yield Ailment("warning", what, remedy, path, command("retry", "ls", "--target", name))
    if events["dead"]:
        what = f"{name} has {number(events['dead'])} dead {'letter' if events['dead'] == 1 else 'letters'}"
        remedy = "They are not retried any more. Mend the cause, then replay them."
        yield Ailment("warning", what, remedy, path, command("dead-letter", "ls", "--target", name))
    if events["discarded"]:
        what = f"{name} has missed {number(events['discarded'])} events"
        remedy = "Its queue was full. No replay brings them back; a mirror is repaired by reconciling it."
        yield Ailment("warning", what, remedy, path, command("target", "show", name))


def _of_queue(queue: Mapping[str, Any], targets: Sequence[Mapping[str, Any]]) -> Iterator[Ailment]:
    running = any(target["arn"] == queue["target"] and target["state"] != "disabled" for target in targets)
    if running and not queue["served"]:
        name = short_target(queue["target"])
        what = f"No worker has answered on the queue of {name} for {duration(queue['age'])}"
        yield Ailment(
            "problem", what, "Start a worker that serves it.", "workers", command("worker", "--targets", name)
        )
