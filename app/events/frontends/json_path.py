"""Read members of a sender's object by their path; errors about missing or mistyped members name the path."""

from typing import Any

from app.events.errors import BadRecord, excerpt


def find(value: Any, *path: str) -> Any:
    """Return the member at the path, or None if there is none."""
    for step in path:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def text(value: Any, *path: str) -> str:
    """Return the text at the path, not empty. Raises `BadRecord`."""
    member = find(value, *path)
    if isinstance(member, str) and member:
        return member
    name = ".".join(path)
    if member is None:
        raise BadRecord(name, "is missing; it must be text")
    raise BadRecord(name, f"is {excerpt(member)}; it must be text that is not empty")


def optional_text(value: Any, *path: str) -> str:
    """Return the text at the path, or "" if there is none or it is not a text."""
    member = find(value, *path)
    return member if isinstance(member, str) else ""


def number(value: Any, *path: str) -> int | None:
    """Return the integer at the path, also if it is a text (as protobuf's JSON writes 64 bits), or None."""
    member = find(value, *path)
    if isinstance(member, str) and member.isascii() and member.isdigit() and len(member) < 20:
        return int(member)
    return member if isinstance(member, int) and not isinstance(member, bool) else None


def without_empty(record: dict[str, Any]) -> dict[str, Any]:
    """Return the members that have a value: MinIO omits empty ones (§1.4)."""
    return {name: value for name, value in record.items() if value not in (None, "", {})}
