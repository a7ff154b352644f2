"""What a real MinIO sent to a webhook, line by line, numbered from 1 as in the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FIXTURES = Path(__file__).parents[1] / "fixtures"

LINES: list[str] = (_FIXTURES / "minio_webhook_events.jsonl").read_text("utf-8").split("\n")[:-1]
HEADERS: list[dict[str, str]] = [
    dict(json.loads(line)["headers"])
    for line in (_FIXTURES / "minio_webhook_headers.jsonl").read_text("utf-8").split("\n")[:-1]
]


def line(number: int) -> str:
    return LINES[number - 1]


def record(number: int) -> dict[str, Any]:
    found = json.loads(line(number))["Records"][0]
    assert isinstance(found, dict)
    return found
