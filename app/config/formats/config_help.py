"""Describe the sections of `notify_…` text and their keys as `mc admin config` does, from the declarations."""

from dataclasses import dataclass

from app.config.api_settings import ApiSettings
from app.config.fields.fields import Field, fields_of
from app.config.formats.environment import variable
from app.config.targets.base import TargetSettings, ordered_fields

# As MinIO describes its sections, which the guides show; all others are "<title> endpoints".
_RECEIVERS = {
    "mysql": "MySQL databases",
    "postgresql": "Postgres databases",
    "redis": "Redis datastores",
    "webhook": "webhook endpoints",
}


@dataclass(frozen=True, slots=True)
class KeyHelp:
    """One key of a section: its name or its variable, the type of its values, and what it means."""

    name: str
    kind: str
    about: str
    mandatory: bool


def describe_section(cls: type[TargetSettings]) -> str:
    """Return one line about a section."""
    return f"publish bucket notifications to {_RECEIVERS.get(cls.type_name, f'{cls.title} endpoints')}"


def key_helps(cls: type[TargetSettings], *, variables: bool = False) -> dict[str, KeyHelp]:
    """Return the help of a section's keys by their names; with `variables` the keys are environment variables.

    A target of the environment exists only if it is enabled there, so the variable of `enable` is mandatory.
    """
    return {
        name: KeyHelp(
            name=variable(cls, name) if variables else name,
            kind=_kind(key),
            about=_about(key),
            mandatory=key.required or (variables and name == "enable"),
        )
        for name, key in ordered_fields(cls).items()
    }


def api_helps(*, variables: bool = False) -> dict[str, KeyHelp]:
    """Return the help of the section `api`, as `key_helps` does."""
    return {
        name: KeyHelp(key.env if variables else name, _kind(key), _about(key), mandatory=False)
        for name, key in fields_of(ApiSettings).items()
    }


def _kind(key: Field) -> str:
    label = key.kind.label.removesuffix(", or empty").replace("on/off", "on|off")
    return label.replace("` or `", "|").replace("`", "")


def _about(key: Field) -> str:
    about = key.about.replace("`", "'")
    return f"{about}, default is '{key.default}'" if key.default else about
