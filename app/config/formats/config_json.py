"""Targets from the `config.json` that MinIO had until 2019 (reference §3.5)."""

from collections.abc import Iterator, Mapping

from app.config.arn import TargetId
from app.config.errors import BadValue, Problem, did_you_mean
from app.config.fields.fields import names_of
from app.config.formats.environment import Found
from app.config.targets.base import TargetSettings
from app.config.targets.registry import TYPES


def from_config_json(document: object) -> Found:
    """The targets of a parsed `config.json`, or of its `notify` member alone. Never raises.

    Member names are today's in camel case, also nested (`streaming.clusterID`); what is no key today stands among
    the texts by its old name, so that loading the target refuses it. As there, a target is off unless it says
    `enable`.
    """
    types = document.get("notify", document) if isinstance(document, Mapping) else None
    if not isinstance(types, Mapping):
        return Found(
            {}, [Problem("notify", "", "is missing", 'the file holds {"notify": {"<type>": {"<name>": {…}}}}')]
        )
    targets: dict[TargetId, Mapping[str, str]] = {}
    problems = []
    for type_name, named in types.items():
        place = f"notify.{type_name}"
        if type_name not in TYPES:
            problems.append(Problem(place, "", "is no target type here", did_you_mean(str(type_name), list(TYPES))))
        elif not isinstance(named, Mapping):
            problems.append(Problem(place, "", "is no object", 'write {"<name>": {"enable": true, …}}'))
        else:
            for name, members in named.items():
                try:
                    target = TargetId(type_name, name)
                except BadValue as error:
                    problems.append(Problem(f"{place}.{name}", "", error.problem, error.hint))
                    continue
                if not isinstance(members, Mapping):
                    problems.append(Problem(f"{place}.{name}", "", "is no object", 'write {"enable": true, …}'))
                    continue
                targets[target] = {"enable": "off"} | _named_as_today(TYPES[type_name], members)
    return Found(targets, problems)


def _named_as_today(cls: type[TargetSettings], members: Mapping[str, object]) -> dict[str, str]:
    names = {_squashed(name): today for name, today in names_of(cls).items()}
    found = {}
    for path, value in _flat(members):
        squashed = _squashed("".join(path))
        if squashed not in names and len(path) > 1 and path[-1] == "enable":
            squashed = _squashed("".join(path[:-1]))  # streaming.enable is today's streaming
        if squashed in cls.obsolete:
            continue
        found[names.get(squashed, ".".join(path))] = _text(value)
    return found


def _flat(members: Mapping[str, object], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in members.items():
        path = (*above, str(name))
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        else:
            yield path, value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(_text(each) for each in value)
    return "" if value is None else str(value)


def _squashed(name: str) -> str:
    return name.replace("_", "").lower()
