"""The mechanism of settings: a frozen dataclass whose fields carry their own declaration.

    @declared
    class RedisSettings(TargetSettings, type_name="redis"):
        address: HostPort = setting(Host(6379), about="the server")
        password: str = setting(Text(), default="", secret=True, about="of the server or of `user`")

A setting without a `default` is required. Everything else is derived from the declaration: the input and output
formats, the checks, which values are secret, and the reference page.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from app.config.errors import REDACTED, BadSettings, BadValue, Problem, suggestion
from app.config.fields.addresses import hide_typed_secret
from app.config.fields.field_types import FieldType, Path, Switch, Toggle
from app.config.fields.secret_refs import is_secret_ref, looks_like_secret_ref, resolve_secret

T = TypeVar("T")
D = TypeVar("D", bound="Declared")
MAX_CHARACTERS = 65_536  # characters of a setting
_METADATA = "setting"
_FIELDS: dict[type, Mapping[str, "Field"]] = {}


@dataclass(frozen=True, slots=True)
class Field:
    """One declared setting. `default` is a text that `kind` can parse, or None if the setting is required.

    `of_host`: a value may have the workers use what is their host's: a file, a socket, an account, a role.
    """

    name: str
    kind: FieldType[Any]
    default: str | None
    secret: bool
    env: str
    aliases: tuple[str, ...]
    about: str
    of_host: bool = False

    @property
    def required(self) -> bool:
        """Whether the setting has no default."""
        return self.default is None

    @property
    def refers(self) -> bool:
        """Whether the value may be a reference, `file:/path` or `env:NAME`."""
        return self.secret or self.kind.holds_secrets

    def shown(self, text: str) -> str:
        """Return the text as it may be printed."""
        if not self.secret or not text:
            return hide_typed_secret(self.kind.shown(text))
        return text if is_secret_ref(text) else REDACTED

    def references(self, text: str) -> list[str]:
        """Return the references to secrets in a text: the whole of it, or parts, however they are written there."""
        return [part for part in self._resolved_parts(text) if is_secret_ref(part)]

    def has_unresolved_reference(self, text: str) -> bool:
        """Return whether what looks like a reference is within a longer text, which is used as it is."""
        return any(looks_like_secret_ref(part) for part in self._resolved_parts(text) if not is_secret_ref(part))

    def _resolved_parts(self, text: str) -> list[str]:
        """Return the parts of a text that may each be a reference."""
        parts: list[str] = []

        def note(part: str) -> str:
            parts.append(part)
            return part

        if text and self.refers:
            with suppress(BadValue):  # nothing of a text that cannot be read is resolved
                self.kind.resolve(text, note)
        return parts

    def restored(self, text: str, stored: str) -> str:
        """Return a text that may have been printed and sent back, with the stored secrets in place of `*redacted*`."""
        return stored if text == self.shown(stored) else self.kind.restored(text, stored)

    def secrets_in(self, value: Any) -> Iterator[str]:
        """Yield the secrets within a value: the whole of a secret one and its words, and what its type knows of."""
        if self.secret:
            for text in [value] if isinstance(value, str) else filter(_is_text, value):
                yield text
                yield from text.split()
        yield from self.kind.secrets_in(value)

    def fallback(self) -> Any:
        """Return the value to use if none is set."""
        return self.kind.parse(self.default) if self.default else self.kind.empty


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def setting(
    kind: FieldType[T],
    *,
    default: str | None = None,
    secret: bool = False,
    env: str = "",
    aliases: tuple[str, ...] = (),
    about: str = "",
    of_host: bool | None = None,
) -> T:
    """Declare a setting. `env` replaces the upper-case name in the variable; `aliases` are older names.

    `of_host` is true for a path, unless it says otherwise.
    """
    is_of_host = isinstance(kind, Path) if of_host is None else of_host
    key = Field("", kind, default, secret, env, aliases, about, is_of_host)
    if key.required:
        return cast(T, field(metadata={_METADATA: key}))
    return cast(T, field(default=key.fallback(), metadata={_METADATA: key}))


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting, field))
def declared(cls: type[T]) -> type[T]:
    """Make a class of declared settings a frozen, keyword-only dataclass."""
    return dataclass(frozen=True, kw_only=True, repr=False)(cls)


class Declared:
    """Settings with declared keys. They compare by value, and `repr` redacts their secrets.

    `of_service`: they come only from the service's environment, so references in them may name any file.
    """

    of_service: ClassVar[bool] = False

    def problems(self) -> Iterator[Problem]:
        """Check values against each other that are each valid by themselves."""
        return iter(())

    def ineffective(self) -> Iterator[Problem]:
        """Yield the settings that have no effect beside the others. MinIO accepts them without a word."""
        return iter(())

    def host_files(self) -> Iterator[tuple[str, str]]:
        """Yield each setting that uses something of the host of the workers, with its name: a file, a socket, a role.

        The workers use it with their own rights, so a token that is limited to targets may not set it.
        """
        for name in host_settings(type(self)):
            if isinstance(fields_of(type(self))[name].kind, Path | Toggle) and (value := getattr(self, name)):
                yield name, str(value)

    def secrets(self) -> Iterator[str]:
        """Yield every secret of these settings, also those within URLs, connection strings and headers."""
        for name, key in fields_of(type(self)).items():
            if value := getattr(self, name):
                yield from key.secrets_in(value)

    def __repr__(self) -> str:
        parts = []
        for name, key in fields_of(type(self)).items():
            value = getattr(self, name)
            if value != key.fallback() or key.required:
                parts.append(f"{name}={REDACTED if key.secret else key.shown(str(value))}")
        return f"{type(self).__name__}({', '.join(parts)})"


def fields_of(cls: type[Declared]) -> Mapping[str, Field]:
    """Return the declared settings of a class by name, in the order of their declaration."""
    if cls not in _FIELDS:
        _FIELDS[cls] = _collect_fields(cls)
    return _FIELDS[cls]


def _collect_fields(cls: type[Declared]) -> Mapping[str, Field]:
    collected = {}
    for attribute in fields(cast(Any, cls)):
        if key := attribute.metadata.get(_METADATA):
            name = attribute.name
            collected[name] = replace(key, name=name)
    return collected


def host_settings(cls: type[Declared]) -> list[str]:
    """Return the names of the settings of a class that may have the workers use what is their host's."""
    return [name for name, key in fields_of(cls).items() if key.of_host]


def names_of(cls: type[Declared]) -> Mapping[str, str]:
    """Return the current name of a setting for every name it has had."""
    return {name: key.name for key in fields_of(cls).values() for name in (key.name, *key.aliases)}


def parse(
    cls: type[D], values: Mapping[str, object], environ: Mapping[str, str] | None = None, *, lenient: bool = False
) -> D:
    """Parse settings from texts or JSON values. Raises `BadSettings` with every problem.

    With `lenient`, settings without effect are accepted, as in MinIO. An empty value means no value. References in
    secrets (`file:/path`, `env:NAME`) are resolved here. Required keys are checked only if the settings are enabled;
    values are checked against each other only if each is present and valid by itself.
    """
    texts, problems = texts_of(cls, values)
    parsed: dict[str, Any] = {}
    missing, wrong = [], []
    for name, key in fields_of(cls).items():
        text = texts.get(name, "")
        parsed[name] = key.fallback()
        if not text:
            if key.required:
                missing.append(Problem(name, "", "is required", key.about))
            continue
        try:
            parsed[name] = _value(key, text, environ, own=cls.of_service)
        except BadValue as error:
            wrong.append(Problem(name, key.shown(text), error.problem, error.hint))
    problems += wrong
    settings = cast(D, cast(Any, cls)(**parsed))
    if parsed.get("enable", True):
        # A missing or invalid value is replaced by a placeholder, which must not be compared with the other values.
        problems += missing
        if not wrong and not missing:
            problems += [*settings.problems(), *(() if lenient else settings.ineffective())]
    if problems:
        raise BadSettings(problems)
    return settings


def _value(key: Field, text: str, environ: Mapping[str, str] | None, *, own: bool) -> Any:
    if REDACTED in text:
        raise BadValue("contains the placeholder of a secret, not the secret", "give the secret, or leave the key out")
    if key.refers:
        text = key.kind.resolve(text, lambda reference: resolve_secret(reference, environ, own=own))
    return key.kind.parse(text)


def texts_of(cls: type[Declared], values: Mapping[str, object]) -> tuple[dict[str, str], list[Problem]]:
    """Return values as texts by their current names, without surrounding spaces, and the problems.

    Null means no value. An unknown key, or a value that cannot be a text, is a problem and not among the texts.
    """
    texts: dict[str, str] = {}
    problems: list[Problem] = []
    for key, value in values.items():
        name = names_of(cls).get(key)
        if name is None:
            problems.append(Problem(key, "", "is not a known setting", suggestion(key, [*fields_of(cls)], problems)))
        elif name in texts:
            problems.append(Problem(key, "", f"is given twice, also as {name}", f"keep {name}"))
        elif value is not None:
            try:
                texts[name] = _text(fields_of(cls)[name].kind, value)
            except BadValue as error:
                problems.append(Problem(key, "", error.problem, error.hint))
    return texts, problems


def _text(kind: FieldType[Any], value: object) -> str:
    text = _as_text(kind, value)
    if len(text) > MAX_CHARACTERS:
        raise BadValue(f"has {len(text):,} characters", f"give at most {MAX_CHARACTERS:,}")
    return text


def _as_text(kind: FieldType[Any], value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        if isinstance(kind, Toggle | Switch):
            return "on" if value else "off"
        raise BadValue("is a JSON boolean, which this setting does not accept", f"give it as {kind.label}")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if kind.separator and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return kind.separator.join(value)
    if kind.is_mapping and isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values()):
        return json.dumps({str(name): item for name, item in value.items()})
    raise BadValue("is of a JSON type that this setting does not accept", f"give it as text: {kind.label}")


def references(cls: type[Declared], texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the references to secrets in texts, by the settings' current names; those without any are left out."""
    names, known = names_of(cls), fields_of(cls)
    by_name = {names[key]: known[names[key]].references(text) for key, text in texts.items() if key in names}
    return {name: texts for name, texts in by_name.items() if texts}


def unresolved_references(cls: type[Declared], texts: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each setting with what looks like a reference within a longer text, which is none.

    It quotes nothing: the text may be a secret.
    """
    known = fields_of(cls)
    for name, text in texts.items():
        if name in known and known[name].has_unresolved_reference(text):
            beside = "set password=env:NAME beside it, or " if "password" in known and name != "password" else ""
            yield (
                f"{name} has env: or file: within a longer text, which is used as it is: only a whole value is a "
                f"reference; {beside}refer to the whole value"
            )


def redact(cls: type[Declared], values: Mapping[str, str]) -> dict[str, str]:
    """Return texts as they may be printed. An unknown key may be a misspelt secret, so its value is redacted too."""
    names, known = names_of(cls), fields_of(cls)
    return {key: known[names[key]].shown(text) if key in names else (text and REDACTED) for key, text in values.items()}
