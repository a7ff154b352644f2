"""The forms of targets, made from the declarations of their settings: help, choices and checks are the formats' own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flask import Response, request

from app.api.refused import Refused
from app.config.errors import REDACTED
from app.config.fields.field_types import Switch, Toggle
from app.config.fields.fields import Field, fields_of
from app.config.fields.secret_refs import is_secret_ref
from app.config.targets.base import TargetSettings, ordered_fields
from app.config.targets.registry import TYPES
from app.console import calls
from app.console.calls import target_path
from app.console.formats import command
from app.console.pages import done, page, show


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
    is_set: bool
    common: bool  # a setting of every type


@page("/targets/new", "GET", "POST")
def new() -> Response:
    """Choose a type, then create a target of it."""
    kind = request.values.get("type", "")
    if kind not in TYPES:
        types = [(name, cls.title) for name, cls in TYPES.items()]
        return show("target_types.html", here="overview", types=types)
    name, wrong = request.form.get("target_name", "").strip(), None
    settings = _settings(kind, {}) if request.method == "POST" else {}
    if request.method == "POST":
        try:
            _refuse_existing(kind, name)
            calls.change("PUT", target_path(kind, name), settings)
            return done(f"{kind}:{name} is created. A rule decides which events it gets.", f"targets/{kind}/{name}")
        except Refused as refused:
            if refused.status not in (400, 404, 409):
                raise
            wrong = refused
    return _form(kind, name, settings, wrong, existing=False)


@page("/targets/<kind>/<name>/edit", "GET", "POST")
def edit(kind: str, name: str) -> Response:
    """Change a target's settings; a secret whose field is left empty is kept."""
    stored: dict[str, str] = calls.get(target_path(kind, name))["settings"]
    settings, wrong = stored, None
    if request.method == "POST":
        settings = _settings(kind, stored)
        try:
            calls.change("PUT", target_path(kind, name), settings)
            text = f"{kind}:{name} is changed; its new settings are in use within a second."
            return done(text, f"targets/{kind}/{name}")
        except Refused as refused:
            if refused.status not in (400, 409):
                raise
            wrong = refused
    return _form(kind, name, settings, wrong, existing=True)


def _refuse_existing(kind: str, name: str) -> None:
    """Raise `Refused` if there is such a target: creating it would replace its settings."""
    if not name or "/" in name:
        raise Refused(400, {"detail": "give the target a name", "field": "target_name"})
    try:
        calls.get(target_path(kind, name))
    except Refused as refused:
        if refused.status != 404:
            raise
        return
    raise Refused(409, {"detail": f"there is a target {kind}:{name} already; edit it instead", "field": "target_name"})


def _settings(kind: str, stored: Mapping[str, str]) -> dict[str, str]:
    """Return what the form sets: an empty field has its default, an empty secret is kept unless it is cleared."""
    settings = {}
    for name, key in fields_of(TYPES[kind]).items():
        text = request.form.get(f"s.{name}", "").strip()
        if key.secret and not text and stored.get(name) and not request.form.get(f"clear.{name}"):
            text = stored[name]  # `*redacted*`, which means the stored one, or a reference to it
        if text:
            settings[name] = text
    return settings


def _form(kind: str, name: str, settings: Mapping[str, str], wrong: Refused | None, *, existing: bool) -> Response:
    texts = {key: fields_of(TYPES[kind])[key].shown(text) for key, text in settings.items()}
    shown = [f"{key}={text}" for key, text in texts.items() if REDACTED not in text]
    return show(
        "target_form.html",
        wrong.status if wrong else 200,
        here="overview",
        kind=kind,
        kind_title=TYPES[kind].title,
        name=name,
        path=f"targets/{kind}/{name}" if existing else "",
        inputs=inputs(TYPES[kind], settings),
        existing=existing,
        wrong=wrong,
        cli=command("target", "set", f"{kind}:{name or 'NAME'}", *shown),
    )


def inputs(cls: type[TargetSettings], settings: Mapping[str, Any]) -> list[Input]:
    """Return the inputs of a type's form with these settings, in the order in which people read them."""
    common = fields_of(TargetSettings)
    return [_input(key, str(settings.get(name, "")), name in common) for name, key in ordered_fields(cls).items()]


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
        is_set=value == REDACTED,
        common=common and key.name != "enable",
    )


def _choices(key: Field) -> tuple[str, ...]:
    if isinstance(key.kind, Toggle | Switch):
        return ("on", "off")
    words: tuple[str, ...] = getattr(key.kind, "words", ())
    return words
