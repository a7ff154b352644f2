"""Settings of targets by the name of their type: what reads, checks, keeps or shows them begins here."""

from collections.abc import Mapping
from typing import overload

from app.config import keys
from app.config.arn import TargetId
from app.config.environment import Found, from_environ
from app.config.keys import D
from app.config.legacy import from_config_json
from app.config.lines import parse_line, parse_lines, to_line
from app.config.problems import REDACTED, BadSettings, Problem
from app.config.targets import TargetSettings, settings_type

__all__ = [
    "REDACTED",
    "BadSettings",
    "Found",
    "Problem",
    "broken",
    "from_config_json",
    "from_environ",
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
        return keys.parse(settings_type(type_name), values, environ)
    return keys.parse(type_name, values, environ)


def texts(type_name: str, values: Mapping[str, object]) -> dict[str, str]:
    """Values as they are kept: texts by the names of today. Raises `BadSettings` for what is no setting or no text."""
    found, problems = keys.texts_of(settings_type(type_name), values)
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
        elif name not in stored or text != keys.keys_of(cls)[name].shown(stored[name]):
            result[name] = text
    return result


def redacted(type_name: str, values: Mapping[str, str]) -> dict[str, str]:
    """The texts as they may be printed, secrets as `*redacted*`."""
    return keys.shown(settings_type(type_name), values)


def broken(
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
