"""Load, check, merge, redact and format settings, by the name of the target type or by their declaration."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, overload

from app.config.arn import SourceId, TargetId
from app.config.bucket_settings import BucketId, BucketSettings
from app.config.declared_types import settings_type, source_type
from app.config.errors import REDACTED, BadSettings, Problem
from app.config.fields import fields
from app.config.fields.fields import D, Declared
from app.config.formats.config_json import from_config_json
from app.config.formats.environment import ParsedTargets, from_environ, sources_from_environ
from app.config.formats.notify_lines import parse_line, parse_lines, to_line
from app.config.targets.base import TargetSettings, without_effect

R = TypeVar("R", TargetId, SourceId)
Resource = TargetId | SourceId | BucketId

__all__ = [
    "REDACTED",
    "BadSettings",
    "ParsedTargets",
    "Problem",
    "Resource",
    "changed_lines",
    "declaration_of",
    "from_config_json",
    "from_environ",
    "invalid_settings",
    "load",
    "merged",
    "parse_line",
    "parse_lines",
    "redacted",
    "replaced_keys",
    "sources_from_environ",
    "texts",
    "to_line",
    "warnings",
    "with_kept_secrets",
]


@overload
def load(
    type_name: str, values: Mapping[str, object], environ: Mapping[str, str] | None = None, *, lenient: bool = False
) -> TargetSettings: ...
@overload
def load(
    type_name: type[D], values: Mapping[str, object], environ: Mapping[str, str] | None = None, *, lenient: bool = False
) -> D: ...
def load(
    type_name: str | type[D],
    values: Mapping[str, object],
    environ: Mapping[str, str] | None = None,
    *,
    lenient: bool = False,
) -> TargetSettings | D:
    """Load a target's settings from texts or JSON values; references in secrets are resolved.

    With `lenient`, a setting without effect, such as `tls_skip_verify` without TLS, is accepted: MinIO's own forms are
    read so. Raises `BadSettings` with every problem at once, secrets redacted.
    """
    cls = settings_type(type_name) if isinstance(type_name, str) else type_name
    return fields.parse(cls, values, environ, lenient=lenient)


def warnings(
    type_name: str | type[Declared], values: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> list[str]:
    """Return a sentence for each setting that is accepted and has no effect, or another one than was probably meant.

    None for invalid settings.
    """
    try:
        settings = load(_declaration(type_name), values, environ, lenient=True)
    except BadSettings:
        return []
    ineffective = settings.ineffective() if getattr(settings, "enable", True) else ()
    written = texts(type_name, values)
    unresolved = fields.unresolved_references(_declaration(type_name), written)
    return [*map(str, ineffective), *without_effect(written), *unresolved]


def texts(type_name: str | type[Declared], values: Mapping[str, object]) -> dict[str, str]:
    """Return values as texts under their current names, as they are stored.

    Raises `BadSettings` for an unknown key and for a value that cannot be written as text.
    """
    result, problems = fields.texts_of(_declaration(type_name), values)
    if problems:
        raise BadSettings(problems)
    return result


def joined(lines: Iterable[tuple[TargetId, Mapping[str, str]]]) -> dict[TargetId, Mapping[str, str]]:
    """Return the keys that lines set, by target; a later line of the same target prevails."""
    settings: dict[TargetId, Mapping[str, str]] = {}
    for target, values in lines:
        settings[target] = {**settings.get(target, {}), **values}
    return settings


def merged(type_name: str | type[Declared], stored: Mapping[str, str], changes: Mapping[str, object]) -> dict[str, str]:
    """Apply `changes` to the stored texts, as MinIO's `config set` does (§3.1).

    A key that is left out keeps its value, and so does a secret that is sent back as `*redacted*`. An empty value or
    null resets the key to its default. Raises `BadSettings`; the result is not checked until it is loaded.
    """
    cls = _declaration(type_name)
    result = dict(stored)
    without_null = {key: "" if value is None else value for key, value in changes.items()}
    for name, text in texts(type_name, without_null).items():
        if not text:
            result.pop(name, None)
        else:
            result[name] = fields.fields_of(cls)[name].restored(text, stored[name]) if name in stored else text
    return result


def replaced_keys(type_name: str | type[Declared], changes: Mapping[str, object]) -> list[str]:
    """Return the keys whose stored texts `merged` does not need for these changes.

    They need not be readable: they may have been sealed with a key that is lost. Raises `BadSettings`.
    """
    without_null = {key: "" if value is None else value for key, value in changes.items()}
    return [name for name, text in texts(type_name, without_null).items() if REDACTED not in text]


def with_kept_secrets(
    type_name: str | type[Declared], read_stored: Callable[[], Mapping[str, str]], settings: Mapping[str, object]
) -> Mapping[str, object]:
    """Return new settings, with the stored secrets for those that were sent as `*redacted*`.

    The stored texts are read only if that is needed. Raises `BadSettings`.
    """
    given = texts(type_name, settings)
    if not any(REDACTED in text for text in given.values()):
        return settings
    return {name: text for name, text in merged(type_name, read_stored(), settings).items() if name in given}


def redacted(type_name: str | type[Declared], values: Mapping[str, str]) -> dict[str, str]:
    """Return the texts as they may be printed, secrets as `*redacted*`."""
    return fields.redact(_declaration(type_name), values)


def changed_lines(type_name: str | type[Declared], before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the lines of a diff for each key that changes: `-` before, `+` after, secrets redacted."""
    shown_before, shown_after = redacted(type_name, before), redacted(type_name, after)
    lines = []
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            lines += [f"- {key}={shown_before[key]}"] if key in before else []
            lines += [f"+ {key}={shown_after[key]}"] if key in after else []
    return lines


def invalid_settings(
    settings: Mapping[R, Mapping[str, object]], environ: Mapping[str, str] | None = None
) -> dict[R, BadSettings]:
    """Return the targets or sources whose settings are invalid, with the reason; each is checked alone, leniently."""
    problems = {}
    for resource, values in settings.items():
        try:
            load(declaration_of(resource), values, environ, lenient=True)
        except BadSettings as error:
            problems[resource] = error.about(str(resource))
    return problems


def declaration_of(resource: Resource) -> type[Declared]:
    """Return the settings class of what is declared. Raises `BadSettings`, which names the known types."""
    if isinstance(resource, BucketId):
        return BucketSettings
    return source_type(resource.type) if isinstance(resource, SourceId) else settings_type(resource.type)


def _declaration(type_name: str | type[Declared]) -> type[Declared]:
    return settings_type(type_name) if isinstance(type_name, str) else type_name
