"""Targets from `MINIO_NOTIFY_<TYPE>_<KEY>[_<NAME>]` variables (reference §3.2)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from app.config.arn import UNNAMED, TargetId
from app.config.errors import BadValue, Problem, did_you_mean, nearest
from app.config.fields.fields import Field, fields_of
from app.config.targets.base import TargetSettings
from app.config.targets.registry import TYPES

_PREFIX = "MINIO_NOTIFY_"


class ParsedTargets(NamedTuple):
    """Targets with their texts, not yet loaded, and the problems that belong to no target.

    `notes` are sentences about what is not taken over, or only with another meaning.
    """

    targets: dict[TargetId, Mapping[str, str]]
    problems: list[Problem]
    notes: Sequence[str] = ()


def variable(cls: type[TargetSettings], key: str, name: str = UNNAMED) -> str:
    """Return the variable that sets a key of a target."""
    variable = f"{_PREFIX}{cls.env}_{_suffix(fields_of(cls)[key])}"
    return variable if name == UNNAMED else f"{variable}_{name}"


def from_environ(environ: Mapping[str, str]) -> ParsedTargets:
    """Read the targets of the environment. Never raises: a problem of one target does not affect the others.

    As in MinIO, an `…_ENABLE` variable creates a target and names it; the name keeps its case and may contain `_`. An
    empty variable is ignored. A target's unknown key is kept among its texts, so that loading the target refuses it; a
    variable that belongs to no target is a separate problem.
    """
    remaining = {name.removeprefix(_PREFIX): text.strip() for name, text in environ.items() if name.startswith(_PREFIX)}
    remaining = {name: text for name, text in remaining.items() if text}
    targets: dict[TargetId, Mapping[str, str]] = {}
    problems: list[Problem] = []
    for cls in TYPES.values():
        of_type = {
            name.removeprefix(f"{cls.env}_"): remaining.pop(name)
            for name in list(remaining)
            if name.startswith(f"{cls.env}_")
        }
        parsed = _parse_type(cls, of_type)
        targets |= parsed.targets
        problems += parsed.problems
    known = [cls.env for cls in TYPES.values()]
    for name in remaining:
        hint = did_you_mean(name.partition("_")[0], known)
        problems.append(Problem(_PREFIX + name, "", "is of an unknown target type", hint))
    return ParsedTargets(targets, problems)


def _parse_type(cls: type[TargetSettings], variables: dict[str, str]) -> ParsedTargets:
    problems = []
    values: dict[str, dict[str, str]] = {}
    unusable = []
    enable = _suffix(fields_of(cls)["enable"])
    for rest in [rest for rest in variables if rest == enable or rest.startswith(f"{enable}_")]:
        name = rest[len(enable) + 1 :] or UNNAMED
        text = variables.pop(rest)
        try:
            TargetId(cls.type_name, name)
        except BadValue as error:
            problems.append(Problem(f"{_PREFIX}{cls.env}_{rest}", name, error.problem, error.hint))
            unusable.append(name)
            continue
        values[name] = {"enable": text}
    for rest, text in variables.items():
        owner = _owner(cls, rest, values)
        if owner:
            name, key = owner
            values[name][key] = text
        elif not any(rest.endswith(f"_{name}") for name in unusable):
            problems.append(_stray_problem(cls, rest))
    return ParsedTargets({TargetId(cls.type_name, name): texts for name, texts in values.items()}, problems)


def _owner(cls: type[TargetSettings], rest: str, names: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the target and key of a variable: the reading with the longest key; known keys take precedence."""
    readings = list(_readings(cls, rest))
    for name, key in readings:
        if name in names:
            return name, key
    if readings:
        return None  # a known key, but of a target without an ENABLE variable
    for name in sorted(names, key=len, reverse=True):
        if rest.endswith(f"_{name}"):
            return name, rest.removesuffix(f"_{name}").lower()
    return (UNNAMED, rest.lower()) if UNNAMED in names else None


def _readings(cls: type[TargetSettings], rest: str) -> Iterator[tuple[str, str]]:
    suffixes = {_suffix(key): key.name for key in fields_of(cls).values()}
    for suffix in sorted(suffixes, key=len, reverse=True):
        if rest == suffix:
            yield UNNAMED, suffixes[suffix]
        elif rest.startswith(f"{suffix}_"):
            yield rest[len(suffix) + 1 :], suffixes[suffix]


def _stray_problem(cls: type[TargetSettings], rest: str) -> Problem:
    key = f"{_PREFIX}{cls.env}_{rest}"
    for name, _ in _readings(cls, rest):
        missing = variable(cls, "enable", name)
        close = nearest(rest, [_suffix(known) for known in fields_of(cls).values()])
        hint = f"set {missing}=on" + (f", or did you mean {close}?" if close not in ("", rest) else "")
        return Problem(key, "", "belongs to no target", hint)
    hint = f"{variable(cls, 'enable')}_<NAME>=on creates a target"
    return Problem(key, "", "belongs to no target and is not a known key", hint)


def _suffix(key: Field) -> str:
    return key.env or key.name.upper()
