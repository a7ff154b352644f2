"""The doctor's findings as the pages list them: those of one subject together, each with what can be done. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.config.arn import parse_target
from app.config.errors import BadValue
from app.logs import clause
from app.resources.service import FINDING_GRADES

ATTENTION = ("problem", "warning")  # grades of findings that need somebody
_OF_PROCESSES = ("api", "beat", "broker", "drain", "versions", "workers")  # subjects that the page of these is about
_HOST = "host "  # begins the subject of a finding about one
_GRAVEST_FIRST = FINDING_GRADES[::-1]
_SOURCE = "source "  # begins the subject of a finding about one
_DOCTOR = "doctor"  # the page about every other subject


@dataclass(frozen=True, slots=True)
class Action:
    """A button beside a finding: a page, or a form at `path` that changes something."""

    text: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    is_form: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A finding in a list; `follows` if it is about the same subject as the one before it."""

    id: str
    subject: str
    path: str
    grade: str
    text: str
    command: Sequence[str]
    action: Action
    follows: bool


def lines(findings: Sequence[Mapping[str, Any]], *, may_change: bool, sees_all: bool) -> list[Line]:
    """Return findings for a visitor: those of one subject together, and the subjects with the gravest ones first."""
    by_subject: dict[str, list[Mapping[str, Any]]] = {}
    for each in sorted(findings, key=_severity):
        by_subject.setdefault(each["subject"], []).append(each)
    return [
        Line(
            id=f"finding-{re.sub('[^A-Za-z0-9]+', '-', subject)}-{index}",
            subject=subject,
            path=page_of(subject),
            grade=each["grade"],
            text=each["text"],
            command=each["command"],
            action=_action(subject, each["command"], may_change=may_change, sees_all=sees_all),
            follows=index > 0,
        )
        for subject, group in by_subject.items()
        for index, each in enumerate(group)
    ]


def of_target(findings: Sequence[Mapping[str, Any]], target: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what is found of a target besides its state, which its page begins with."""
    name, reason = f"{target['type']}:{target['name']}", clause(target["reason"])
    for each in findings:
        is_of_state = each["text"].startswith(target["state"]) or bool(reason and reason in each["text"])
        if each["subject"] == name and not is_of_state:
            yield each


def is_about_processes(subject: str) -> bool:
    """Return whether a finding with this subject is one that the page of the processes is about."""
    return subject in _OF_PROCESSES or subject.startswith(_HOST)


def page_of(subject: str) -> str:
    """Return the page about what a finding is about."""
    if is_about_processes(subject):
        return "processes"
    if subject.startswith(_SOURCE):
        return f"sources/{_split(subject.removeprefix(_SOURCE))}"
    try:
        target = parse_target(subject)
    except BadValue:
        return _DOCTOR
    return f"targets/{target.type}/{target.name}"


def _action(subject: str, command: Sequence[str], *, may_change: bool, sees_all: bool) -> Action:
    """Return what the command of a finding does, as a button; what a visitor may not do is a page to look at."""
    action = Action("Show", page_of(subject))
    match command:
        case ["target", "test", name] if may_change:
            action = Action("Test", f"targets/{_split(name)}/test", is_form=True)
        case ["target" | "source" as noun, "resume", name] if may_change:
            action = Action("Resume", f"{noun}s/{_split(name)}/resume", is_form=True)
        case ["dead-letter" | "retry" as noun, "ls", "--target", name]:
            action = Action("Show", "dead-letters" if noun == "dead-letter" else "retries", {"target": name})
        case ["event", "search", "--target", name, "--state", state] if sees_all:
            action = Action("Show", "events", {"target": name, "state": state})
        case ["event", "show", number] if sees_all:
            action = Action("Show", f"events/{number}")
        case ["reconcile", *_] if sees_all:
            action = Action("Show", "reconciliations")
        case ["audit", "--action", name] if sees_all and may_change:
            action = Action("Show", "audit", {"action": name})
        case ["token", *_] if sees_all and may_change:
            action = Action("Show", "tokens")
        case ["worker" | "process", *_] if sees_all:
            action = Action("Show", "processes")
    return action


def _split(name: str) -> str:
    return name.replace(":", "/", 1)


def _severity(finding: Mapping[str, Any]) -> int:
    return _GRAVEST_FIRST.index(finding["grade"])
