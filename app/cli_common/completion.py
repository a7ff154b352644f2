"""What a shell completes: targets, by the API of the service; event names and scopes.

Each is asked at a key press, so nothing slow is imported here, and an API that is away completes nothing.
"""

import http.client
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from click.shell_completion import CompletionItem

from app.http_answers import Answer

_TIMEOUT_SECONDS = 0.5
_MAX_ANSWER_BYTES = 1 << 24
_DEFAULT_ADDRESS = "127.0.0.1:8730"


def complete_target(incomplete: str) -> list[CompletionItem]:
    """Return the targets as type:name, or as ARNs where one is begun."""
    answer = _get("/v1/targets?brief=true")
    names = [
        target["arn"] if incomplete.startswith("arn") else f"{target['type']}:{target['name']}"
        for target in answer.get("targets", [])
    ]
    return _beginning(incomplete, names)


def complete_list(incomplete: str, words: Iterable[str]) -> list[CompletionItem]:
    """Return completions of the last word of a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{item.value}") for item in _beginning(last, words)]


def complete_events(_context: object, _parameter: object, incomplete: str) -> list[CompletionItem]:
    """Return the words of `mc` for events, and the names of events once one is begun."""
    from app.events.names import AGGREGATES, EVERY, KNOWN, SHORTHANDS  # noqa: PLC0415 - only where they are completed

    names: Sequence[str] = sorted(KNOWN | AGGREGATES.keys())
    return complete_list(incomplete, names if incomplete.rpartition(",")[2].startswith("s3") else [*SHORTHANDS, EVERY])


def complete_event(_context: object, _parameter: object, incomplete: str) -> list[CompletionItem]:
    """Return the names of single events."""
    from app.events.names import KNOWN  # noqa: PLC0415 - only where they are completed

    return _beginning(incomplete, sorted(KNOWN))


def complete_scopes(_context: object, _parameter: object, incomplete: str) -> list[CompletionItem]:
    """Return the scopes of a token."""
    from app.config.settings import SCOPES  # noqa: PLC0415 - only where they are completed

    return complete_list(incomplete, SCOPES)


def _beginning(incomplete: str, words: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _get(path: str) -> dict[str, Any]:
    """Return what the API at BUCKETWIRE_URL, or at this machine's address, answers; {} if it does not."""
    url = os.environ.get("BUCKETWIRE_URL") or f"http://{os.environ.get('BUCKETWIRE_LISTEN') or _DEFAULT_ADDRESS}"
    token = os.environ.get("BUCKETWIRE_TOKEN", "")
    try:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_SECONDS)
        connection.response_class = Answer
        try:
            connection.request(
                "GET", parts.path.rstrip("/") + path, headers={"Authorization": f"Bearer {token}"} if token else {}
            )
            answer = json.loads(connection.getresponse().read(_MAX_ANSWER_BYTES))
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return answer if isinstance(answer, dict) else {}
