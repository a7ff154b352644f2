"""MinIO's settings of the section `api`, of which this service has one: `sync_events` (reference §6).

`MINIO_API_SYNC_EVENTS` takes precedence over the stored value, as every variable of MinIO does.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from app.config.errors import BadSettings, BadValue
from app.config.fields.field_types import Switch
from app.config.fields.fields import Declared, declared, fields_of, parse, setting, texts_of

SECTION = "api"
ABOUT = "manage how notifications are sent"


@declared
class ApiSettings(Declared):
    """The section's keys. An empty value is not set."""

    sync_events: Literal["on", "off", ""] = setting(
        Switch(),
        default="",
        env="MINIO_API_SYNC_EVENTS",
        about="sync mode of targets whose `sync` is empty; empty: off",
    )


class SyncEvents(NamedTuple):
    """Whether targets that do not set `sync` themselves are in sync mode, and what decides it."""

    value: Literal["on", "off"]
    origin: Literal["environment", "stored", "default"]


def sync_events(variable: str, stored: Mapping[str, str]) -> SyncEvents:
    """Return what is in force; `variable` is the value of the environment, empty if it is not set."""
    if variable:
        return SyncEvents("on" if variable == "on" else "off", "environment")
    if text := stored.get("sync_events"):
        return SyncEvents("on" if text == "on" else "off", "stored")
    return SyncEvents("off", "default")


def is_sync(values: Mapping[str, str], service: SyncEvents) -> bool:
    """Return whether a target with these texts is delivered to in sync mode; its own `sync` takes precedence."""
    try:
        own = Switch().parse(values["sync"]) if values.get("sync") else service.value
    except BadValue:  # a broken target, which gets no events
        own = service.value
    return own == "on"


def api_texts(values: Mapping[str, object], *, backup: bool = False) -> dict[str, str]:
    """Check keys of the section and return their texts, `on`, `off` or empty. Raises `BadSettings`.

    In a `backup` of a MinIO, the keys that only MinIO has are left out.
    """
    kept = {key: value for key, value in values.items() if not backup or key in fields_of(ApiSettings)}
    texts, problems = texts_of(ApiSettings, kept)
    if problems:
        raise BadSettings(problems, SECTION)
    try:
        settings = parse(ApiSettings, texts)
    except BadSettings as error:
        raise error.about(SECTION) from None
    return {name: getattr(settings, name) for name in fields_of(ApiSettings) if name in texts}
