"""The settings of a target or a source that are in force: those that were set, and the defaults beside them. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.config.fields.fields import Field
from app.config.targets.base import DEFAULT_QUEUE_LIMIT


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as a page shows it; `in_force` is empty unless another value than its text is."""

    name: str
    text: str
    in_force: str = ""


def as_set(settings: Mapping[str, str], other: Mapping[str, str]) -> list[Setting]:
    """Return the settings that were set; `other` has values in force that a text does not say."""
    return [
        Setting(name, text, "" if other.get(name, text) == text else other[name])
        for name, text in settings.items()
        if text
    ]


def by_default(fields: Mapping[str, Field], settings: Mapping[str, str], other: Mapping[str, str]) -> list[Setting]:
    """Return the settings that are in force without being set."""
    texts = {name: other.get(name) or field.default for name, field in fields.items() if not settings.get(name)}
    return [Setting(name, text) for name, text in texts.items() if text]


def other_values(target: Mapping[str, Any], *, allow_private: bool) -> dict[str, str]:
    """Return values in force that follow from other settings: those of the target, or of the service.

    `allow_private` is that of the service, which allows every target private addresses.
    """
    return dict(_other_values(target["settings"], target["mode"], allow_private=allow_private))


def _other_values(settings: Mapping[str, str], mode: str, *, allow_private: bool) -> Iterator[tuple[str, str]]:
    yield "sync", "on" if mode == "sync" else "off"
    if not settings.get("queue_limit", "").strip(" +0"):
        yield "queue_limit", f"{DEFAULT_QUEUE_LIMIT}, as queue_dir is set" if settings.get("queue_dir") else "no limit"
    if allow_private:
        yield "allow_private", "on, for every target"
