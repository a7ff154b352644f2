"""How the parts of the service write their logs: lines for people, or one JSON object a line.

For people each part keeps the layout of the program that it runs in. In JSON every line of every part has the members
`time` (UTC), `level`, `logger`, `pid` and `message`, those that the line brings itself, and `trace` with an exception.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pythonjsonlogger.json import JsonFormatter

Form = Literal["text", "json"]
_FOR_PEOPLE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_MEMBERS = ("asctime", "levelname", "name", "process", "message")
_CALLED = {"asctime": "time", "levelname": "level", "name": "logger", "process": "pid", "exc_info": "trace"}


class Json(JsonFormatter):
    """A record as one JSON object, in ASCII: whatever a remote has said, a line stays a line."""

    def __init__(self) -> None:
        super().__init__(_MEMBERS, rename_fields=_CALLED)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - logging's
        """RFC 3339, to the millisecond."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def configure(form: Form, level: int | str = logging.INFO) -> None:
    """Have this process log to its standard error in this form, from this level on; nothing else stays in place."""
    log = logging.StreamHandler(sys.__stderr__)
    log.setFormatter(Json() if form == "json" else logging.Formatter(_FOR_PEOPLE))
    logging.basicConfig(level=level, handlers=[log], force=True)
    logging.captureWarnings(capture=True)


def line(message: str, level: str = "INFO", logger: str = "bucketwire", **members: Any) -> str:
    """A line in JSON, for what is said outside of `logging`."""
    record = logging.makeLogRecord(
        {"msg": message, "levelname": level, "levelno": logging.getLevelName(level), "name": logger, **members}
    )
    return Json().format(record)


def members(text: str) -> Mapping[str, Any] | None:
    """The members of a line in JSON; None for any other line."""
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def printable(text: str) -> str:
    """The text with its control characters spelt out: what a remote or a key says must not steer the terminal."""
    return "".join(
        char if char.isprintable() or char == " " else char.encode("unicode_escape").decode() for char in text
    )
