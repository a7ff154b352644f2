"""Read members of a sender's object by their path; what is missing or of another kind is said of that path."""

from typing import Any

from app.events.errors import BadRecord, excerpt


def find(value: Any, *path: str) -> Any:
    """The member at the path, or None if there is none."""
    for step in path:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def text(value: Any, *path: str) -> str:
    """The text at the path, not empty. Raises `BadRecord`."""
    found = find(value, *path)
    if isinstance(found, str) and found:
        return found
    name = ".".join(path)
    if found is None:
        raise BadRecord(name, "is missing; it must be text")
    raise BadRecord(name, f"is {excerpt(found)}; it must be text that is not empty")


def optional_text(value: Any, *path: str) -> str:
    """The text at the path, or "" if there is none or it is of another kind."""
    found = find(value, *path)
    return found if isinstance(found, str) else ""


def number(value: Any, *path: str) -> int | None:
    """The whole number at the path, also if it is spelt as text (as protobuf's JSON spells 64 bits), or None."""
    found = find(value, *path)
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) < 20:
        return int(found)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def without_empty(record: dict[str, Any]) -> dict[str, Any]:
    """The members that have a value: MinIO leaves out empty ones (§1.4)."""
    return {name: value for name, value in record.items() if value not in (None, "", {})}
