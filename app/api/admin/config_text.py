"""Write sections of settings as MinIO does: a line for each target, variables of the environment as comments."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from app.config.arn import UNNAMED, TargetId
from app.config.errors import REDACTED, BadSettings
from app.config.formats.environment import variable
from app.config.formats.notify_lines import to_line
from app.config.target_settings import redacted
from app.config.targets.base import TargetSettings, ordered_fields


@dataclass(frozen=True, slots=True)
class ShownTarget:
    """A target as it is to be written. A `problem` is written instead of texts that cannot be read."""

    target: TargetId
    texts: Mapping[str, str]
    enabled: bool
    from_environment: bool = False
    problem: str = ""


def unset(cls: type[TargetSettings]) -> ShownTarget:
    """Return the unnamed target of a section in which it is not set: off, with every default."""
    return ShownTarget(TargetId(cls.type_name, UNNAMED), {}, enabled=False)


def section_text(cls: type[TargetSettings], targets: Iterable[ShownTarget], *, backup: bool = False) -> str:
    """Write targets of a section, one line for each.

    As in MinIO, keys of a secret that is set are left out, `enable` if it is on, and `comment` if it is empty. For a
    `backup` secrets are `*redacted*`, so that importing it keeps the stored ones, and what an import should not set is
    a comment.
    """
    return "".join(f"{line}\n" for target in targets for line in _lines(cls, target, backup=backup))


def _lines(cls: type[TargetSettings], shown: ShownTarget, *, backup: bool) -> list[str]:
    if shown.problem:
        return [_comment(shown.problem)]
    try:
        if shown.from_environment:
            line = to_line(shown.target, {})
            return [*_variables(cls, shown, backup=backup), _comment(line) if backup else line]
        line = to_line(shown.target, _values(cls, shown, backup=backup))
    except BadSettings as error:  # a value that no line can hold
        return [_comment(str(error.about(str(shown.target))))]
    return [line if shown.enabled or not backup else _comment(line)]


def _comment(text: str) -> str:
    return "# " + " ".join(text.splitlines())


def _values(cls: type[TargetSettings], shown: ShownTarget, *, backup: bool) -> dict[str, str]:
    values = {name: key.default or "" for name, key in ordered_fields(cls).items()} | dict(shown.texts)
    left_out = set() if backup else _secrets(cls, shown.texts)
    left_out |= {"enable"} if shown.enabled else set()
    left_out |= set() if values["comment"] else {"comment"}
    off = {} if shown.enabled else {"enable": "off"}
    return {name: text for name, text in (values | off).items() if name not in left_out}


def _variables(cls: type[TargetSettings], shown: ShownTarget, *, backup: bool) -> Iterator[str]:
    texts = redacted(cls.type_name, shown.texts)
    left_out = set() if backup else _secrets(cls, shown.texts)
    for name in ordered_fields(cls):
        if texts.get(name) and name not in left_out:
            yield f"# {variable(cls, name, shown.target.name)}={texts[name]}"


def _secrets(cls: type[TargetSettings], texts: Mapping[str, str]) -> set[str]:
    keys = ordered_fields(cls)
    shown = redacted(cls.type_name, texts)
    return {name for name, text in shown.items() if text == REDACTED and (name not in keys or keys[name].secret)}
