"""Targets and sources from variables: `MINIO_NOTIFY_<TYPE>_<KEY>[_<NAME>]` (reference §3.2), `BUCKETWIRE_SOURCE_…`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from app.config.arn import UNNAMED, SourceId, TargetId
from app.config.declared_types import SOURCE_TYPES, TYPES
from app.config.errors import BadValue, Problem, did_you_mean, nearest
from app.config.fields.fields import Field, fields_of
from app.config.sources.base import SourceSettings
from app.config.targets.base import TargetSettings

R = TypeVar("R", TargetId, SourceId)
SOURCE_PREFIX = "BUCKETWIRE_SOURCE_"
_TARGET_PREFIX = "MINIO_NOTIFY_"
_Declaration = type[TargetSettings] | type[SourceSettings]


class ParsedTargets(NamedTuple):
    """Targets with their texts, not yet loaded, and the problems that belong to no target.

    `notes` are sentences about what is not taken over, or only with another meaning.
    """

    targets: dict[TargetId, Mapping[str, str]]
    problems: list[Problem]
    notes: Sequence[str] = ()


def variable(cls: _Declaration, key: str, name: str = UNNAMED) -> str:
    """Return the variable that sets a key of a target or source."""
    prefix = SOURCE_PREFIX if issubclass(cls, SourceSettings) else _TARGET_PREFIX
    variable = f"{prefix}{cls.env}_{_suffix(fields_of(cls)[key])}"
    return variable if name == UNNAMED else f"{variable}_{name}"


def from_environ(environ: Mapping[str, str]) -> ParsedTargets:
    """Read the targets of the environment. Never raises: a problem of one target does not affect the others.

    As in MinIO, an `…_ENABLE` variable creates a target and names it; the name keeps its case and may contain `_`. An
    empty variable is ignored. A target's unknown key is kept among its texts, so that loading the target refuses it; a
    variable that belongs to no target is a separate problem.
    """
    return ParsedTargets(*_Variables("target", _TARGET_PREFIX, TYPES, TargetId).parse(environ))


def sources_from_environ(environ: Mapping[str, str]) -> tuple[dict[SourceId, Mapping[str, str]], list[Problem]]:
    """Read the sources of the environment likewise: their texts, and the problems that belong to no source."""
    return _Variables("source", SOURCE_PREFIX, SOURCE_TYPES, SourceId).parse(environ)


@dataclass(frozen=True, slots=True)
class _Variables(Generic[R]):
    """The variables of the targets, or of the sources."""

    noun: str
    prefix: str
    types: Mapping[str, type[TargetSettings]] | Mapping[str, type[SourceSettings]]
    identity: Callable[[str, str], R]

    def parse(self, environ: Mapping[str, str]) -> tuple[dict[R, Mapping[str, str]], list[Problem]]:
        remaining = {
            name.removeprefix(self.prefix): text.strip()
            for name, text in environ.items()
            if name.startswith(self.prefix) and text.strip()
        }
        parsed: dict[R, Mapping[str, str]] = {}
        problems: list[Problem] = []
        for cls in self.types.values():
            of_type = {
                name.removeprefix(f"{cls.env}_"): remaining.pop(name)
                for name in list(remaining)
                if name.startswith(f"{cls.env}_")
            }
            parsed |= self._parse_type(cls, of_type, problems)
        known = [cls.env for cls in self.types.values()]
        for name in remaining:
            hint = did_you_mean(name.partition("_")[0], known)
            problems.append(Problem(self.prefix + name, "", f"is of an unknown {self.noun} type", hint))
        return parsed, problems

    def _parse_type(
        self, cls: _Declaration, variables: dict[str, str], problems: list[Problem]
    ) -> dict[R, Mapping[str, str]]:
        values: dict[str, dict[str, str]] = {}
        unusable = []
        enable = _suffix(fields_of(cls)["enable"])
        for rest in [rest for rest in variables if rest == enable or rest.startswith(f"{enable}_")]:
            name = rest[len(enable) + 1 :] or UNNAMED
            text = variables.pop(rest)
            try:
                self.identity(cls.type_name, name)
            except BadValue as error:
                problems.append(Problem(f"{self.prefix}{cls.env}_{rest}", name, error.problem, error.hint))
                unusable.append(name)
                continue
            values[name] = {"enable": text}
        for rest, text in variables.items():
            owner = _owner(cls, rest, values)
            if owner:
                name, key = owner
                values[name][key] = text
            elif not any(rest.endswith(f"_{name}") for name in unusable):
                problems.append(self._stray_problem(cls, rest))
        return {self.identity(cls.type_name, name): texts for name, texts in values.items()}

    def _stray_problem(self, cls: _Declaration, rest: str) -> Problem:
        key = f"{self.prefix}{cls.env}_{rest}"
        for name, _ in _readings(cls, rest):
            missing = variable(cls, "enable", name)
            close = nearest(rest, [_suffix(known) for known in fields_of(cls).values()])
            hint = f"set {missing}=on" + (f", or did you mean {close}?" if close not in ("", rest) else "")
            return Problem(key, "", f"belongs to no {self.noun}", hint)
        hint = f"{variable(cls, 'enable')}_<NAME>=on creates a {self.noun}"
        return Problem(key, "", f"belongs to no {self.noun} and is not a known key", hint)


def _owner(cls: _Declaration, rest: str, names: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the name and key of a variable: the reading with the longest key; known keys take precedence."""
    readings = list(_readings(cls, rest))
    for name, key in readings:
        if name in names:
            return name, key
    if readings:
        return None  # a known key, but of one without an ENABLE variable
    for name in sorted(names, key=len, reverse=True):
        if rest.endswith(f"_{name}"):
            return name, rest.removesuffix(f"_{name}").lower()
    return (UNNAMED, rest.lower()) if UNNAMED in names else None


def _readings(cls: _Declaration, rest: str) -> Iterator[tuple[str, str]]:
    suffixes = {_suffix(key): key.name for key in fields_of(cls).values()}
    for suffix in sorted(suffixes, key=len, reverse=True):
        if rest == suffix:
            yield UNNAMED, suffixes[suffix]
        elif rest.startswith(f"{suffix}_"):
            yield rest[len(suffix) + 1 :], suffixes[suffix]


def _suffix(key: Field) -> str:
    return key.env or key.name.upper()
