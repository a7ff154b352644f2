"""Name the services that post events of object storage in a form that is not accepted."""

from collections.abc import Mapping
from typing import Any

_EVENT_TYPES = {  # how their values of `eventType` or, in a CloudEvent, of `type` begin
    "Microsoft.": "Azure Event Grid",
    "google.cloud.": "Google Eventarc",
    "com.oraclecloud.": "Oracle Cloud Infrastructure Events",
    "b2:": "Backblaze B2",
}


def service_name(value: Mapping[str, Any]) -> str | None:
    """Return which service made an object that no frontend has; None if that cannot be told."""
    events = value.get("events")
    if isinstance(events, list) and events and isinstance(events[0], dict):
        return service_name(events[0])
    for member in ("eventType", "type"):
        kind = value.get(member)
        if isinstance(kind, str):
            for beginning, name in _EVENT_TYPES.items():
                if kind.startswith(beginning):
                    return name
    if isinstance(value.get("message"), dict) and isinstance(value.get("subscription"), str):
        return "a Google Pub/Sub push subscription"
    if value.get("kind") == "storage#object":
        return "Google Eventarc"
    if isinstance(value.get("object"), dict) and {"account", "action", "bucket"} <= value.keys():
        return "Cloudflare R2"
    return None
