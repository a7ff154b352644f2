"""Settings of targets by the name of their type: what reads, checks, keeps or shows them begins here."""

from collections.abc import Mapping
from typing import overload

from app.config.arn import TargetId
from app.config.errors import REDACTED, BadSettings, Problem
from app.config.fields import fields
from app.config.fields.fields import D
from app.config.formats.config_json import from_config_json
from app.config.formats.environment import Found, from_environ
from app.config.formats.notify_lines import parse_line, parse_lines, to_line
from app.config.targets.base import TargetSettings
from app.config.targets.registry import settings_type

__all__ = [
    "REDACTED",
    "BadSettings",
    "Found",
    "Problem",
    "from_config_json",
    "from_environ",
    "invalid_targets",
    "load",
    "merged",
    "parse_line",
    "parse_lines",
    "redacted",
    "texts",
    "to_line",
]


@overload
def load(type_name: str, values: Mapping[str, object], environ: Mapping[str, str] | None = None) -> TargetSettings: ...
@overload
def load(type_name: type[D], values: Mapping[str, object], environ: Mapping[str, str] | None = None) -> D: ...
def load(
    type_name: str | type[D], values: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> TargetSettings | D:
    """A target's settings, ready for use, from texts or JSON values; references in secrets are resolved.

    Raises `BadSettings` with every problem at once, secrets left out.
    """
    if isinstance(type_name, str):
        return fields.parse(settings_type(type_name), values, environ)
    return fields.parse(type_name, values, environ)


def texts(type_name: str, values: Mapping[str, object]) -> dict[str, str]:
    """Values as they are kept: texts by the names of today. Raises `BadSettings` for what is no setting or no text."""
    found, problems = fields.texts_of(settings_type(type_name), values)
    if problems:
        raise BadSettings(problems)
    return found


def merged(type_name: str, stored: Mapping[str, str], changes: Mapping[str, object]) -> dict[str, str]:
    """The texts that result when `changes` are made to those stored, as MinIO's `config set` does (§3.1).

    A key that is left out stays, and so does one that is given back as it was shown (`*redacted*`). An empty value
    or null takes the key back to its default. Raises `BadSettings`; what results is yet to be loaded.
    """
    cls = settings_type(type_name)
    result = dict(stored)
    given = {key: "" if value is None else value for key, value in changes.items()}
    for name, text in texts(type_name, given).items():
        if not text:
            result.pop(name, None)
        elif name not in stored or text != fields.fields_of(cls)[name].shown(stored[name]):
            result[name] = text
    return result


def redacted(type_name: str, values: Mapping[str, str]) -> dict[str, str]:
    """The texts as they may be printed, secrets as `*redacted*`."""
    return fields.shown(settings_type(type_name), values)


def invalid_targets(
    found: Mapping[TargetId, Mapping[str, object]], environ: Mapping[str, str] | None = None
) -> dict[TargetId, BadSettings]:
    """Those of the targets whose settings cannot be used, and why; each is judged by itself."""
    problems = {}
    for target, values in found.items():
        try:
            load(target.type, values, environ)
        except BadSettings as error:
            problems[target] = error.about(str(target))
    return problems
