"""Targets from the `config.json` that MinIO had until 2019 (reference §3.5)."""

from collections.abc import Iterator, Mapping

from app.config.arn import TargetId
from app.config.declared_types import TYPES
from app.config.errors import BadValue, Problem, suggestion
from app.config.fields.fields import names_of
from app.config.formats.environment import ParsedTargets
from app.config.targets.base import TargetSettings

# Until March 2017 these appended every event, as `access` does. MinIO's own migration made them `namespace`.
_ONCE_WITHOUT_FORMAT = frozenset({"elasticsearch", "redis"})
_WITHOUT_FORMAT = (
    "no format is given: it is namespace, as since MinIO's update of 2017; "
    "set format=access to append every event, as before"
)


def from_config_json(document: object) -> ParsedTargets:
    """Read the targets of a parsed `config.json`, or of its `notify` member alone. Never raises.

    Member names are the current ones in camel case, also nested (`streaming.clusterID`). An unknown member stays among
    the texts under its old name, so that loading the target refuses it. As in MinIO, a target without `enable` is off.
    The notes name what is left out of targets that are on, and the region.
    """
    types = document.get("notify", document) if isinstance(document, Mapping) else None
    if not isinstance(types, Mapping):
        return ParsedTargets({}, [Problem("notify", "", "is missing", 'write {"notify": {"<type>": {"<name>": {…}}}}')])
    targets: dict[TargetId, Mapping[str, str]] = {}
    problems: list[Problem] = []
    notes = list(_region_note(document))
    for type_name, named in types.items():
        path = f"notify.{type_name}"
        if type_name not in TYPES:
            problems.append(
                Problem(path, "", "is not a known target type", suggestion(str(type_name), [*TYPES], problems))
            )
        elif not isinstance(named, Mapping):
            problems.append(Problem(path, "", "is not a JSON object", 'write {"<name>": {"enable": true, …}}'))
        else:
            for name, members in named.items():
                try:
                    target = TargetId(type_name, name)
                except BadValue as error:
                    problems.append(Problem(f"{path}.{name}", "", error.problem, error.hint))
                    continue
                if not isinstance(members, Mapping):
                    problems.append(Problem(f"{path}.{name}", "", "is not a JSON object", 'write {"enable": true, …}'))
                    continue
                left_out: list[str] = []
                texts = {"enable": "off"} | _rename_members(TYPES[type_name], members, left_out)
                if type_name in _ONCE_WITHOUT_FORMAT and "format" not in texts:
                    left_out.append(_WITHOUT_FORMAT)
                if texts["enable"] == "on":
                    notes += [f"{target}: {sentence}" for sentence in left_out]
                targets[target] = texts
    return ParsedTargets(targets, problems, notes)


def _region_note(document: object) -> Iterator[str]:
    region = document.get("region") if isinstance(document, Mapping) else None
    if isinstance(region, str) and region:
        yield f"region is not a setting of a target: set BUCKETWIRE_REGION={region} to have it in ARNs"


def _rename_members(cls: type[TargetSettings], members: Mapping[str, object], left_out: list[str]) -> dict[str, str]:
    names = {_squash(name): current for name, current in names_of(cls).items()}
    renamed = {}
    for path, value in _flatten(members):
        squashed = _squash("".join(path))
        if squashed not in names and len(path) > 1 and path[-1] == "enable":
            squashed = _squash("".join(path[:-1]))  # streaming.enable is now streaming
        if squashed in cls.obsolete:
            left_out += [f"{'.'.join(path)} is left out: {cls.obsolete[squashed]}"] if value else []
            continue
        renamed[names.get(squashed, ".".join(path))] = _text(value)
    return renamed


def _flatten(members: Mapping[str, object], parents: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in members.items():
        path = (*parents, str(name))
        if isinstance(value, Mapping):
            yield from _flatten(value, path)
        else:
            yield path, value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(_text(item) for item in value)
    return "" if value is None else str(value)


def _squash(name: str) -> str:
    return name.replace("_", "").lower()
