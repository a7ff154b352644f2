"""Make the forms of targets and sources from the declarations of their settings, and list the settings in force.

The forms' own checks are those of these formats. In force are the settings that were set, and the defaults beside them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flask import Response, request

from app.api import Refused
from app.config.declared_types import SOURCE_TYPES, TYPES
from app.config.errors import REDACTED
from app.config.fields.field_types import Switch, Toggle
from app.config.fields.fields import Declared, Field, fields_of
from app.config.fields.secret_refs import is_secret_ref
from app.config.sources.base import SourceSettings, ordered_source_fields
from app.config.targets.base import DEFAULT_QUEUE_LIMIT, TargetSettings, ordered_fields
from app.console import session
from app.console.formats import command
from app.console.pages import FormRefusal, done, page, show
from app.console.session import resource_path


@dataclass(frozen=True, slots=True)
class Input:
    """One setting in a form. `choices` are the values of a list; a secret has no `value`, only whether it `is_set`."""

    name: str
    about: str
    kind: str
    value: str
    default: str
    choices: tuple[str, ...]
    required: bool
    secret: bool
    refers: bool  # it may be a reference to a secret
    is_set: bool
    common: bool  # a setting of every type


@dataclass(frozen=True, slots=True)
class Room:
    """What is declared by settings: targets or sources.

    `begins` and `changes` say when settings take effect, `waits`, `resumed` and `stays` what a pause, its end and a
    removal mean.
    """

    noun: str
    types: Mapping[str, Any]
    shared: type[Declared]
    ordered: Callable[[Any], Mapping[str, Field]]
    question: str
    more: str
    name_help: str
    begins: str
    changes: str
    waits: str
    resumed: str
    stays: str
    example: tuple[str, ...]  # a command


ROOMS: Mapping[str, Room] = MappingProxyType(
    {
        "targets": Room(
            noun="target", types=TYPES, shared=TargetSettings, ordered=ordered_fields,
            question="Which kind of system is to receive events?",
            more="Queue, retries and speed",
            name_help="Letters, digits, _ - or . It is part of the ARN and cannot be changed.",
            begins="A rule decides which events it gets.", changes="its new settings are in use within a second",
            waits="its events wait", resumed="is resumed", stays="",
            example=("target", "set", "webhook:audit", "endpoint=https://example.com/events"),
        ),
        "sources": Room(
            noun="source", types=SOURCE_TYPES, shared=SourceSettings, ordered=ordered_source_fields,
            question="Which kind of queue are events to be pulled from?",
            more="Batches and rejected messages", name_help="Letters, digits, _ - or . It cannot be changed.",
            begins="A worker pulls from it within seconds.",
            changes="a worker takes its new settings up within seconds",
            waits="its messages wait in the queue", resumed="is tried at once", stays="; what it recorded stays",
            example=("source", "set", "kafka:minio", "brokers=kafka.example.com:9092", "topic=events"),
        ),
    }
)  # fmt: skip


@page("/<any(targets, sources):room>/new", "GET", "POST")
def new(room: str) -> Response:
    """Choose a type, then create a target or source of it."""
    kind, of = request.values.get("type", ""), ROOMS[room]
    if kind not in of.types:
        types = [(name, cls.title, getattr(cls, "servers", "")) for name, cls in of.types.items()]
        return show("settings_types.html", here=room, types=types, room=room, of=of)
    name, refusal = request.form.get("target_name", "").strip(), FormRefusal(400, 404, 409, 503)
    settings = _settings(room, kind, {}) if request.method == "POST" else {}
    if request.method == "POST":
        with refusal:
            _refuse_existing(room, kind, name)
            if "test" in request.form:
                return _form(room, kind, name, settings, None, existing=False, trial=_try(room, kind, name, settings))
            session.change("PUT", resource_path(room, kind, name), settings)
            return done(f"{kind}:{name} is created. {of.begins}", f"{room}/{kind}/{name}")
    return _form(room, kind, name, settings, refusal.wrong, existing=False)


@page("/<any(targets, sources):room>/<kind>/<name>/edit", "GET", "POST")
def edit(room: str, kind: str, name: str) -> Response:
    """Change the settings of a target or source; a secret whose field is left empty is kept."""
    stored: dict[str, str] = session.get(resource_path(room, kind, name))["settings"]
    settings, refusal = stored, FormRefusal(400, 409, 503)
    if request.method == "POST":
        settings = _settings(room, kind, stored)
        with refusal:
            if "test" in request.form:
                return _form(room, kind, name, settings, None, existing=True, trial=_try(room, kind, name, settings))
            session.change("PUT", resource_path(room, kind, name), settings)
            return done(f"{kind}:{name} is changed; {ROOMS[room].changes}.", f"{room}/{kind}/{name}")
    return _form(room, kind, name, settings, refusal.wrong, existing=True)


def _try(room: str, kind: str, name: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return what comes of a test with the settings of the form, which are not stored. Raises `Refused`."""
    found: dict[str, Any] = session.change("POST", f"{resource_path(room, kind, name)}/test-settings", settings)
    return found


def _refuse_existing(room: str, kind: str, name: str) -> None:
    """Raise `Refused` if there is one of that name: creating it would replace its settings."""
    noun = ROOMS[room].noun
    if not name or "/" in name:
        raise Refused(400, {"detail": f"give the {noun} a name", "field": "target_name"})
    try:
        session.get(resource_path(room, kind, name))
    except Refused as refused:
        if refused.status != 404:
            raise
        return
    raise Refused(409, {"detail": f"there is a {noun} {kind}:{name} already; edit it instead", "field": "target_name"})


def _settings(room: str, kind: str, stored: Mapping[str, str]) -> dict[str, str]:
    """Return what the form sets: an empty field has its default, an empty secret is kept unless it is cleared."""
    settings = {}
    for name, key in fields_of(ROOMS[room].types[kind]).items():
        text = request.form.get(f"s.{name}", "").strip()
        if key.secret and not text and stored.get(name) and not request.form.get(f"clear.{name}"):
            text = stored[name]  # `*redacted*`, which means the stored one, or a reference to it
        if text:
            settings[name] = text
    return settings


def _form(
    room: str,
    kind: str,
    name: str,
    settings: Mapping[str, str],
    wrong: Refused | None,
    *,
    existing: bool,
    trial: Mapping[str, Any] | None = None,
) -> Response:
    of = ROOMS[room]
    texts = {key: fields_of(of.types[kind])[key].shown(text) for key, text in settings.items()}
    shown = [f"{key}={text}" for key, text in texts.items() if REDACTED not in text]
    words = (of.noun, "set", f"{kind}:{name or 'NAME'}", *shown)
    return show(
        "settings_form.html",
        wrong.status if wrong and "test" not in request.form else 200,  # htmx shows no other answer
        here=room,
        room=room,
        of=of,
        kind=kind,
        kind_title=of.types[kind].title,
        name=name,
        path=f"{room}/{kind}/{name}" if existing else "",
        inputs=inputs(of, kind, settings),
        existing=existing,
        wrong=wrong,
        trial=trial,
        typed=any(fields_of(of.types[kind])[key].secret and text != REDACTED for key, text in settings.items()),
        cli=command(*words),
    )


def inputs(of: Room, kind: str, settings: Mapping[str, Any]) -> list[Input]:
    """Return the inputs of a type's form with these settings, in the order in which people read them."""
    common, ordered = fields_of(of.shared), of.ordered(of.types[kind])
    return [_input(key, str(settings.get(name, "")), name in common) for name, key in ordered.items()]


def _input(key: Field, value: str, common: bool) -> Input:
    hidden = key.secret and bool(value) and not is_secret_ref(value)
    return Input(
        name=key.name,
        about=key.about.replace("`", ""),
        kind=key.kind.label.replace("`", ""),
        value="" if hidden else value,
        default=key.default or "",
        choices=_choices(key),
        required=key.required,
        secret=key.secret,
        refers=key.refers,
        is_set=value == REDACTED,
        common=common and key.name != "enable",
    )


def _choices(key: Field) -> tuple[str, ...]:
    if isinstance(key.kind, Toggle | Switch):
        return ("on", "off")
    words: tuple[str, ...] = getattr(key.kind, "words", ())
    return words


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as a page shows it; `in_force` is empty unless another value than its text is."""

    name: str
    text: str
    in_force: str = ""


def as_set(settings: Mapping[str, str], other: Mapping[str, str]) -> list[Setting]:
    """Return the settings that were set; `other` has values in force that a text does not say."""
    return [
        Setting(name, text, "" if other.get(name, text) == text else other[name])
        for name, text in settings.items()
        if text
    ]


def by_default(fields: Mapping[str, Field], settings: Mapping[str, str], other: Mapping[str, str]) -> list[Setting]:
    """Return the settings that are in force without being set."""
    texts = {name: other.get(name) or field.default for name, field in fields.items() if not settings.get(name)}
    return [Setting(name, text) for name, text in texts.items() if text]


def other_values(target: Mapping[str, Any], *, allow_private: bool) -> dict[str, str]:
    """Return values in force that follow from other settings: those of the target, or of the service.

    `allow_private` is that of the service, which allows every target private addresses.
    """
    return dict(_other_values(target["settings"], target["mode"], allow_private=allow_private))


def _other_values(settings: Mapping[str, str], mode: str, *, allow_private: bool) -> Iterator[tuple[str, str]]:
    yield "sync", "on" if mode == "sync" else "off"
    if not settings.get("queue_limit", "").strip(" +0"):
        yield "queue_limit", f"{DEFAULT_QUEUE_LIMIT}, as queue_dir is set" if settings.get("queue_dir") else "no limit"
    if allow_private:
        yield "allow_private", "on, for every target"
