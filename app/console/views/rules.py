"""Rules: list, add, edit, remove, and try which targets an event would go to."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from flask import Response, request

from app.api import Refused
from app.config.errors import BadValue
from app.config.fields.field_types import Size, written_size
from app.console import session
from app.console.formats import command, options, short_target
from app.console.pages import FormRefusal, action, done, form_values, page, show
from app.events.names import AGGREGATES, EVERY, KNOWN

_MEMBERS = ("bucket", "prefix", "suffix", "target", "regex", "min_size", "max_size")
_PAIRS = ("metadata", "tags")  # one NAME=VALUE in a line
_FIELDS = (*_MEMBERS, *_PAIRS, "events")
_TRIED = ("try_bucket", "key", "event", "metadata", "tags", "size")
_SIZE = Size(0, 2**53)
_PAGE = 200
_USUAL = "s3:ObjectCreated:*, s3:ObjectRemoved:*"


@page("/rules")
def rules() -> Response:
    """List the rules, and try them on an event."""
    bucket, tried = form_values("bucket")["bucket"], form_values(*_TRIED)
    found = session.get("/v1/rules", bucket=bucket)["rules"]
    begin = _number(request.args.get("after", ""))
    match: dict[str, Any] | None = None
    wrong: Refused | None = None
    if tried["try_bucket"]:
        try:
            match = session.change("POST", "/v1/rules/match", _event(tried))
        except Refused as refused:
            wrong = refused
    shown = [rule for rule in found if rule["number"] > begin]
    return show(
        "rules.html",
        here="rules",
        rules=shown[:_PAGE],
        total=len(found),
        bucket=bucket,
        after=begin,
        next=shown[_PAGE - 1]["number"] if len(shown) > _PAGE else None,
        tried=tried,
        match=match,
        wrong=wrong,
        matching={rule["number"] for rule in match["rules"]} if match else set(),
        names=_names(),
        filtered=any(rule.keys() & {*_PAIRS, "min_size", "max_size"} for rule in found),
        has_targets=bool(found) or bool(session.targets()),
    )


@page("/rules/new", "GET", "POST")
def add() -> Response:
    """Add a rule."""
    given = form_values(*_FIELDS)
    refusal = FormRefusal(400, 404)
    if request.method == "POST":
        with refusal:
            made = session.change("POST", "/v1/rules", _rule(given))
            return done(f"Events of {given['bucket']} go to {short_target(made['target'])} now.", "rules")
    return _form("Add a rule", "rules/new", given | {"events": given["events"] or _USUAL}, refusal.wrong)


@page("/rules/<int:number>/edit", "GET", "POST")
def edit(number: int) -> Response:
    """Change a rule: the new one is added before the old one is removed, so that no event is missed."""
    old = next((rule for rule in session.get("/v1/rules")["rules"] if rule["number"] == number), None)
    if old is None:
        raise Refused(404, {"title": "Not found", "detail": f"there is no rule {number}"})
    given = {name: str(old.get(name, "")) for name in _MEMBERS} | {"events": ", ".join(old["events"])}
    given |= {name: _lines(old.get(name, {})) for name in _PAIRS}
    given |= {name: written_size(old[name]) for name in ("min_size", "max_size") if name in old}
    given["target"] = short_target(old["target"])
    refusal = FormRefusal(400, 404)
    if request.method == "POST":
        given = form_values(*_FIELDS)
        with refusal:
            kept = {"rule_id": old["rule_id"]} if old["rule_id"] else {}
            made = session.change("POST", "/v1/rules", _rule(given, old) | kept)
            if made["number"] != number:
                session.change("DELETE", f"/v1/rules/{number}")
            return done("The rule is changed.", "rules")
    return _form(f"Edit rule {number}", f"rules/{number}/edit", given, refusal.wrong)


@action("/rules/<int:number>/remove", "rules")
def remove(number: int) -> Response:
    """Remove a rule."""
    session.change("DELETE", f"/v1/rules/{number}")
    return done("The rule is removed; events that it had matched are still delivered.", "rules")


def _form(title: str, path: str, given: dict[str, str], wrong: Refused | None) -> Response:
    targets = session.targets()
    arn = next((target["arn"] for target in targets if short_target(target["arn"]) == given["target"]), "ARN")
    single = ("prefix", "suffix", "regex", "min_size", "max_size")
    words = options({name.replace("_", "-"): given[name] for name in single})
    for name, option in (("metadata", "--metadata"), ("tags", "--tag")):
        words += [word for line in _split_lines(given[name]) for word in (option, line)]
    events = ",".join(_split(given["events"]))
    return show(
        "rule_form.html",
        here="rules",
        title=title,
        path=path,
        given=given,
        wrong=wrong,
        targets=[short_target(target["arn"]) for target in targets],
        names=_names(),
        cli=command("rule", "add", given["bucket"] or "BUCKET", arn, "--event", events, *words),
    )


def _rule(given: dict[str, str], old: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    rule: dict[str, Any] = {name: given[name] for name in _MEMBERS} | {"events": _split(given["events"])}
    sizes = {name: rule.pop(name) or None for name in ("min_size", "max_size")}
    return rule | sizes | {name: _mapping(name, given[name], old.get(name, {})) for name in _PAIRS}


def _event(tried: dict[str, str]) -> dict[str, Any]:
    event = {"bucket": tried["try_bucket"], "key": tried["key"], "event": tried["event"] or "s3:ObjectCreated:Put"}
    try:
        size = _SIZE.parse(tried["size"]) if tried["size"] else None
    except BadValue as error:
        raise _wrong("size", f"size {error.problem}; {error.hint}") from None
    return event | {"size": size} | {name: _mapping(name, tried[name]) for name in _PAIRS}


def _mapping(field: str, text: str, old: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Parse one NAME=VALUE in each line. Raises `Refused`, as the API does for other fields.

    A line that is as it was shown means the `old` entry, whose name may have a `=` that no line can express.
    """
    pairs: dict[str, str] = {}
    shown = {_line(name, value): (name, value) for name, value in old.items()}
    for line in _split_lines(text):
        name, value = shown.get(line) or (line.partition("=")[0], line.partition("=")[2])
        equals = "=" in line
        if not equals or name in pairs:
            problem = f"has {name} twice" if equals else f"has a line without =: {line}"
            raise _wrong(field, f"{field} {problem}; write one NAME=VALUE in each line")
        pairs[name] = value
    return pairs


def _wrong(field: str, detail: str) -> Refused:
    return Refused(400, {"title": "Invalid value", "detail": detail, "field": field})


def _split_lines(text: str) -> list[str]:
    return [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]


def _lines(pairs: dict[str, str]) -> str:
    return "\n".join(_line(name, value) for name, value in pairs.items())


def _line(name: str, value: str) -> str:
    return f"{name}={value}"


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(text.replace(",", " ").split()))


def _names() -> list[str]:
    return [EVERY, *sorted(AGGREGATES), *sorted(KNOWN)]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
