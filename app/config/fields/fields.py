"""The mechanism of settings: a frozen dataclass whose fields carry their own declaration.

    @declared
    class RedisSettings(TargetSettings, type_name="redis"):
        address: HostPort = setting(Host(6379), about="the server")
        password: str = setting(Text(), default="", secret=True, about="of the server or of `user`")

A setting without a `default` is required. Everything else is derived from the declaration: the forms in which values
come in and go out, the checks, what is secret, and the reference page.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from app.config.errors import REDACTED, BadSettings, BadValue, Problem, did_you_mean
from app.config.fields.field_types import FieldType, Switch, Toggle
from app.config.fields.secret_refs import is_secret_ref, resolve_secret

T = TypeVar("T")
D = TypeVar("D", bound="Declared")
_METADATA = "setting"
_KEYS: dict[type, Mapping[str, "Field"]] = {}


@dataclass(frozen=True, slots=True)
class Field:
    """One declared setting. `default` is a text of its kind, None where the setting is required."""

    name: str
    kind: FieldType[Any]
    default: str | None
    secret: bool
    env: str
    aliases: tuple[str, ...]
    about: str

    @property
    def required(self) -> bool:
        """Whether there is nothing to fall back on."""
        return self.default is None

    @property
    def refers(self) -> bool:
        """Whether `file:/path` or `env:NAME` can stand in place of the value."""
        return self.secret or self.kind.holds_secrets

    def shown(self, text: str) -> str:
        """The text as it may be printed."""
        if not self.secret or not text:
            return self.kind.shown(text)
        return text if is_secret_ref(text) else REDACTED

    def fallback(self) -> Any:
        """The value that counts where none is given."""
        return self.kind.parse(self.default) if self.default else self.kind.empty


def setting(
    kind: FieldType[T],
    *,
    default: str | None = None,
    secret: bool = False,
    env: str = "",
    aliases: tuple[str, ...] = (),
    about: str = "",
) -> T:
    """Declare a setting. `env` replaces the name's upper case in the variable; `aliases` are older names."""
    key = Field("", kind, default, secret, env, aliases, about)
    if key.required:
        return cast(T, field(metadata={_METADATA: key}))
    return cast(T, field(default=key.fallback(), metadata={_METADATA: key}))


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting, field))
def declared(cls: type[T]) -> type[T]:
    """Make a class of declared settings the frozen, keyword-only dataclass that it is."""
    return dataclass(frozen=True, kw_only=True, repr=False)(cls)


class Declared:
    """Settings whose keys are declared. They compare by value, and print without their secrets.

    `of_service`: they come from the service's own environment alone, so references in them may name any file.
    """

    of_service: ClassVar[bool] = False

    def problems(self) -> Iterator[Problem]:
        """What is wrong between values that are each right by themselves."""
        return iter(())

    def __repr__(self) -> str:
        parts = []
        for name, key in fields_of(type(self)).items():
            value = getattr(self, name)
            if value != key.fallback() or key.required:
                parts.append(f"{name}={REDACTED if key.secret else key.kind.shown(str(value))}")
        return f"{type(self).__name__}({', '.join(parts)})"


def fields_of(cls: type[Declared]) -> Mapping[str, Field]:
    """The declared settings of a class by name, in the order of their declaration."""
    if cls not in _KEYS:
        _KEYS[cls] = _collected(cls)
    return _KEYS[cls]


def _collected(cls: type[Declared]) -> Mapping[str, Field]:
    found = {}
    for each in fields(cast(Any, cls)):
        if key := each.metadata.get(_METADATA):
            found[each.name] = Field(each.name, key.kind, key.default, key.secret, key.env, key.aliases, key.about)
    return found


def names_of(cls: type[Declared]) -> Mapping[str, str]:
    """Every name that a setting of the class goes by, and the name that it has today."""
    return {name: key.name for key in fields_of(cls).values() for name in (key.name, *key.aliases)}


def parse(cls: type[D], values: Mapping[str, object], environ: Mapping[str, str] | None = None) -> D:
    """Settings from texts or JSON values. Raises `BadSettings` with every problem there is.

    An empty value counts as none. References in secrets (`file:/path`, `env:NAME`) are resolved here. What is
    required, and what values have to do with each other, is asked only of settings that are enabled, the latter once
    each value by itself is there and right.
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
    made = cast(D, cast(Any, cls)(**parsed))
    if parsed.get("enable", True):
        # Where a value is missing or could not be read, another stands in for it, which says nothing about the rest.
        problems += missing if wrong or missing else made.problems()
    if problems:
        raise BadSettings(problems)
    return made


def _value(key: Field, text: str, environ: Mapping[str, str] | None, *, own: bool) -> Any:
    if REDACTED in text:
        raise BadValue(
            "holds what stands in place of a secret, not the secret", "give the secret, or leave the key out"
        )
    refers = key.refers and (is_secret_ref(text) or not key.kind.has_colons)
    return key.kind.parse(resolve_secret(text, environ, own=own) if refers else text)


def texts_of(cls: type[Declared], values: Mapping[str, object]) -> tuple[dict[str, str], list[Problem]]:
    """Values by the names that settings have today, as texts without surrounding blanks, and what was no setting.

    A value of null is no value. What is unknown or cannot be a text is a problem and not among the texts.
    """
    texts: dict[str, str] = {}
    problems = []
    for given, value in values.items():
        name = names_of(cls).get(given)
        if name is None:
            problems.append(Problem(given, "", "is no setting here", did_you_mean(given, list(fields_of(cls)))))
        elif name in texts:
            problems.append(Problem(given, "", f"is given twice, also as {name}", f"keep {name}"))
        elif value is not None:
            try:
                texts[name] = _text(fields_of(cls)[name].kind, value)
            except BadValue as error:
                problems.append(Problem(given, "", error.problem, error.hint))
    return texts, problems


def _text(kind: FieldType[Any], value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        if isinstance(kind, Toggle | Switch):
            return "on" if value else "off"
        raise BadValue("is true or false, which this setting cannot be", f"give it as {kind.label}")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if kind.separator and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return kind.separator.join(value)
    raise BadValue("is of a JSON type that this setting cannot have", f"give it as text: {kind.label}")


def shown(cls: type[Declared], values: Mapping[str, str]) -> dict[str, str]:
    """Texts as they may be printed. What is no setting may be a misspelt secret, so its value is hidden too."""
    names, known = names_of(cls), fields_of(cls)
    return {
        given: known[names[given]].shown(text) if given in names else (text and REDACTED)
        for given, text in values.items()
    }
