"""Read a node's answers: to a request, and to each document of a `_bulk` request (table in `…elasticsearch.target`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from urllib3 import BaseHTTPResponse

from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.targets.http_errors import retry_after

_SHOWN = 500
_UNAVAILABLE = frozenset({401, 403, 404, 429, 503})
_NOT_THE_EVENTS_FAULT = (
    "index_closed_exception",
    "no write index is defined",
    "only write ops with an op_type of create",
)
CHANGED = Failed("the document was changed by others repeatedly while its version was checked")


@dataclass(frozen=True, slots=True)
class Answer:
    """The node's answer: any status, and the body if it is JSON."""

    status: int
    reason: str
    body: Any
    product: str
    retry_after: float | None

    @property
    def is_good(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status <= 299

    @property
    def error(self) -> str:
        """The node's own description of the error, or the status."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return describe_error(error) or self.reason or "no reason given"


def read_answer(response: BaseHTTPResponse) -> Answer:
    """Read the answer to a request."""
    try:
        body = orjson.loads(response.data) if response.data else None
    except orjson.JSONDecodeError:
        body = None
    product = response.headers.get("X-Elastic-Product", "")
    return Answer(response.status, response.reason or "", body, product, retry_after(response))


def describe_error(error: object) -> str:
    """Return an error's type, reason and root cause in one line; empty for no error."""
    parts: list[str] = []
    while isinstance(error, dict) and len(parts) < 5:
        parts.append(f"{error.get('type', 'error')}: {error.get('reason', '')}")
        error = error.get("caused_by")
    if isinstance(error, str) and not parts:
        parts.append(error)
    shown = " ".join(", caused by ".join(parts).split())
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def outcome_of_item(where: str, item: Mapping[str, Any], *, conditional: bool) -> Outcome:
    """Return the outcome of one document; `CHANGED` if a `conditional` action found another document."""
    ((action, result),) = item.items()
    status, error = result["status"], describe_error(result.get("error"))
    if 200 <= status <= 299 or (status == 404 and action == "delete"):
        return DELIVERED
    reason = f"{where}: {status} {error}"
    if status == 409 and conditional:
        return CHANGED
    if status in _UNAVAILABLE or any(state in error for state in _NOT_THE_EVENTS_FAULT):
        return Unavailable(reason)
    return Failed(reason) if status >= 500 else Rejected(reason)
