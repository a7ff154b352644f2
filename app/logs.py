"""Configure the logs of all processes: text lines for people, or one JSON object per line.

As text, every line of every process begins with the time, the id of the process in brackets, the level and the logger.
As JSON, every line of every process has the members `time`
(UTC), `level`, `logger`, `pid` and `message`, further members of its own, and `trace` with an exception.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pythonjsonlogger.json import JsonFormatter

Form = Literal["text", "json"]
_TEXT = "%(asctime)s [%(process)d] %(levelname)s %(name)s: %(message)s"
_MEMBERS = ("asctime", "levelname", "name", "process", "message")
_RENAMED = {"asctime": "time", "levelname": "level", "name": "logger", "process": "pid", "exc_info": "trace"}


class Json(JsonFormatter):
    """Format a record as one JSON object in ASCII, so that a remote's text never breaks a line."""

    def __init__(self) -> None:
        super().__init__(_MEMBERS, rename_fields=_RENAMED)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - logging's
        """Format the time as RFC 3339 with milliseconds."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def formatter(form: Form) -> logging.Formatter:
    """Return what formats the lines of every logger in this form."""
    return Json() if form == "json" else logging.Formatter(_TEXT)


def configure(form: Form, level: int | str = logging.INFO) -> None:
    """Log to standard error in this form, from this level on; existing handlers are replaced."""
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


class Repetitions:
    """Decide which lines about the same are logged, if many may come: the first one, then one a minute. Thread-safe."""

    _SECONDS, _MAX_KEYS = 60.0, 100

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, int]] = {}  # by key: when to log the next line, and how many were not

    def take(self, key: str = "") -> int:
        """Return how many lines about this one stands for; 0 if it is not to be logged."""
        now = time.monotonic()
        with self._lock:
            if key not in self._known and len(self._known) >= self._MAX_KEYS:
                key = ""
            due_at, left_out = self._known.get(key, (now, 0))
            self._known[key] = (due_at, left_out + 1) if now < due_at else (now + self._SECONDS, 0)
            return 0 if now < due_at else left_out + 1


def line(message: str, level: str = "INFO", logger: str = "bucketwire", **members: Any) -> str:
    """Return a log line in JSON, for messages that do not come from `logging`."""
    record = logging.makeLogRecord(
        {"msg": message, "levelname": level, "levelno": logging.getLevelName(level), "name": logger, **members}
    )
    return Json().format(record)


def members(text: str) -> Mapping[str, Any] | None:
    """Parse a log line in JSON; None for any other line."""
    if not text.startswith("{"):
        return None
    try:
        parsed = json.loads(text)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def clause(text: str) -> str:
    """Return what a remote, a library or a person has said as a part of a sentence: in one line, without its end."""
    return " ".join(text.split()).rstrip(".;,: ")


def printable(text: str) -> str:
    """Escape control characters, so that a remote's text or a key cannot control the terminal."""
    return "".join(
        char if char.isprintable() or char == " " else char.encode("unicode_escape").decode() for char in text
    )
