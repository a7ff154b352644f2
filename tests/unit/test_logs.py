"""Lines of logs in JSON, and which of them the person at the console has to see."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from datetime import datetime

import pytest
from gunicorn.config import Config

from app import logs
from app.config.settings import Settings
from app.server.gunicorn_options import options
from app.supervisor.supervisor import warns


def formatted(message: object, *arguments: object, level: int = logging.INFO, **more: object) -> dict[str, object]:
    record = logging.getLogger("bucketwire.x").makeRecord(
        "bucketwire.x",
        level,
        __file__,
        1,
        message,
        arguments,
        None,
        **more,  # type: ignore[arg-type]
    )
    text = logs.Json().format(record)
    assert "\n" not in text
    found: dict[str, object] = json.loads(text)
    return found


def test_a_line_has_its_time_level_logger_process_and_message_and_what_it_brings() -> None:
    found = formatted("%s of %d", "one", 2, extra={"target": "arn", "duration": 0.25})
    when = found.pop("time")
    assert isinstance(when, str)
    assert abs(datetime.fromisoformat(when).timestamp() - datetime.now().timestamp()) < 60  # noqa: DTZ005
    assert isinstance(found.pop("pid"), int)
    assert found == {
        "level": "INFO", "logger": "bucketwire.x", "message": "one of 2", "target": "arn", "duration": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize("odd", ["two\nlines", "\x1b[31mred", "\ud800", 'a "quote"', "\u2028"])
def test_whatever_a_remote_says_a_line_stays_a_line_and_is_said(odd: str) -> None:
    assert formatted("%s", odd)["message"] == odd
    assert "\n" not in logs.printable(odd)
    assert "\x1b" not in logs.printable(odd)


def test_as_text_a_line_begins_with_its_time_process_level_and_logger() -> None:
    record = logging.getLogger("bucketwire.x").makeRecord("bucketwire.x", logging.INFO, "", 1, "said %d", (1,), None)
    assert re.fullmatch(
        rf"\d{{4}}-\d\d-\d\d [\d:,]{{12}} \[{os.getpid()}\] INFO bucketwire.x: said 1",
        logs.formatter("text").format(record),
    )


@pytest.mark.parametrize("form", ["text", "json"])
def test_gunicorn_formats_its_lines_as_all_logs(form: logs.Form) -> None:
    chosen = options(Settings(log_format=form))["logger_class"]
    config = Config()
    config.set("loglevel", "info")
    error_log = chosen(config).error_log
    handler = error_log.handlers[-1]
    error_log.handlers.clear()
    assert type(handler.formatter) is type(logs.formatter(form))
    assert handler.formatter._fmt == logs.formatter(form)._fmt


@pytest.mark.parametrize(
    ("said", "clause"),
    [
        ("[Errno 111] Connection refused.", "[Errno 111] Connection refused"),
        ("failed: Connection refused\n\tIs the server running?\n", "failed: Connection refused Is the server running?"),
        ("it broke...; ", "it broke"), ("3.5", "3.5"), (" . ", ""),
    ],
)  # fmt: skip
def test_what_others_say_becomes_a_part_of_a_sentence(said: str, clause: str) -> None:
    assert logs.clause(said) == clause


def test_an_exception_is_within_its_line() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", logging.ERROR, __file__, 1, "it broke", (), sys.exc_info())
    found = json.loads(logs.Json().format(record))
    assert "ValueError: why" in found["trace"]
    assert found["message"] == "it broke"


def test_a_line_outside_of_logging_looks_the_same() -> None:
    found = logs.members(logs.line("it runs", "WARNING", api="http://here"))
    assert found is not None
    assert (found["message"], found["level"], found["logger"], found["api"]) == (
        "it runs", "WARNING", "bucketwire", "http://here",
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "plain", "{not json", "[1]", "{}x"])
def test_what_is_no_object_has_no_members(text: str) -> None:
    assert logs.members(text) is None


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (logs.line("all is well"), False),
        (logs.line("a WARNING in words only"), False),
        (logs.line("away", "WARNING"), True),
        (logs.line("broken", "ERROR"), True),
        ('{"level": ["WARNING"]}', False),
        ("2026-11-21 02:56:48,133 [13577] WARNING bucketwire.worker: a target is away", True),
        ("2026-11-21 02:58:58,133 [13577] ERROR gunicorn.error: a worker died", True),
        ("2026-11-21 02:58:58,133 [13577] CRITICAL bucketwire.api: broken", True),
        ("2026-11-21 02:56:48,133 [13577] INFO celery.worker: no WARNING: nothing of note", False),
    ],
)
def test_warnings_are_known_in_either_form(line: str, seen: bool) -> None:
    assert warns(line) is seen
