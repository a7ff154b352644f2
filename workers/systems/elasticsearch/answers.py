"""Decide what a cluster's answers mean: to a request, and to each document of `_bulk` (table in `….target`)."""

import re
from collections.abc import Mapping
from http.client import responses
from typing import Any

from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.targets.batch import Doubt

_MAX_SHOWN_CHARACTERS = 500
_MIN_MAJOR = 7
_UNAVAILABLE = frozenset({401, 403, 404, 429, 503})
_NOT_THE_EVENTS_FAULT = (
    "index_closed_exception",
    "no write index is defined",
    "only write ops with an op_type of create",
)
_ABOUT_THE_INDEX = (*_NOT_THE_EVENTS_FAULT, "shards open")  # the cluster has as many as it may have
# What no index would take. Anything else may be the fault of the index: a field that became a date, a strict mapping, a
# pipeline that is missing or fails, a data stream's `@timestamp`, the limits of fields and of their depth.
_OF_THE_DOCUMENT = re.compile(r"name cannot|nesting depth|immense term|too long", re.IGNORECASE)
CHANGED = Failed("the document was changed by others repeatedly while its version was checked")
NO_MIRROR = "it is a data stream, in which nothing can be replaced; format namespace needs an index"


def is_good(status: int) -> bool:
    """Return whether a request with this status succeeded."""
    return 200 <= status <= 299


def problem_of_answer(status: int, body: Any) -> str:
    """Return why an answer, whatever was asked, is none of a cluster that accepts the login; empty if it is one."""
    if status == 401:
        return f"answered 401: {error_of_answer(status, body)} (check the login)"
    if 300 <= status <= 399 or (is_good(status) and not isinstance(body, dict)):
        return f"answered {status}: the server is not Elasticsearch"
    return ""


def error_of_answer(status: int, body: Any) -> str:
    """Return the server's own description of the error, or what the status means."""
    described = describe_error(body.get("error")) if isinstance(body, dict) else ""
    return described or responses.get(status, "no reason given")


def describe_error(error: object) -> str:
    """Return an error's type, reason and root cause in one line; empty for no error."""
    parts: list[str] = []
    while isinstance(error, dict) and len(parts) < 5:
        parts.append(f"{error.get('type', 'error')}: {error.get('reason', '')}")
        error = error.get("caused_by")
    if isinstance(error, str) and not parts:
        parts.append(error)
    shown = " ".join(", caused by ".join(parts).split())
    return shown if len(shown) <= _MAX_SHOWN_CHARACTERS else f"{shown[:_MAX_SHOWN_CHARACTERS]}…"


def problem_of_server(body: Any, product: str | None, *, opensearch: bool) -> str:
    """Return why the server that introduces itself like this cannot be written to; empty if it can.

    `product` is the name in its `X-Elastic-Product` header, `opensearch` whether servers without it are accepted.
    """
    version = body.get("version") if isinstance(body, dict) else None
    number = str(version.get("number", "")) if isinstance(version, dict) else ""
    if not number:
        return "the server is not Elasticsearch"
    is_opensearch = isinstance(version, dict) and version.get("distribution") == "opensearch"
    if not opensearch and (is_opensearch or product != "Elasticsearch"):
        server = f"OpenSearch {number}" if is_opensearch else f"version {number} of an unnamed server"
        return f"this is {server}; set opensearch=on to use it"
    major = re.match(r"[0-9]+", number)
    if not is_opensearch and (major is None or int(major[0]) < _MIN_MAJOR):
        return f"version {number} is too old; {_MIN_MAJOR} or later is needed"
    return ""


def problem_of_index(resolved: Any, name: str, *, is_mirror: bool) -> str | None:
    """Return why what has this name cannot be written to, empty if it can; None if nothing has the name.

    Unlike in MinIO, an alias and a data stream count as existing (§4.8).
    """
    if _named(resolved.get("indices"), name):
        return ""
    if alias := _named(resolved.get("aliases"), name):
        indices = alias.get("indices", [])
        if is_mirror and len(indices) != 1:
            return (
                f"it is an alias of {len(indices)} indices, and a document could be in any of them; "
                "format namespace needs an alias of one"
            )
        return ""
    if _named(resolved.get("data_streams"), name):
        return NO_MIRROR if is_mirror else ""
    return None


def indices_of_alias(resolved: Any, name: str) -> int:
    """Return how many indices the alias of this name has; 1 for anything else."""
    alias = _named(resolved.get("aliases"), name)
    return len(alias.get("indices", [])) if alias else 1


def problem_of_alias(indices: Any, name: str) -> str:
    """Return why an alias of these indices (name to settings) cannot be written to; empty if it can."""
    if any(index["aliases"][name].get("is_write_index") for index in indices.values()):
        return ""
    return f"it is an alias of {len(indices)} indices, none of them to write to"


def outcome_of_item(
    where: str, item: Mapping[str, Any], *, conditional: bool, of_template: bool = False
) -> Outcome | Doubt:
    """Return the outcome of one document; `CHANGED` if a `conditional` action found another document.

    With `of_template` the index is this event's: that it is refused says nothing of the others.
    """
    ((action, result),) = item.items()
    status, error = result["status"], describe_error(result.get("error"))
    reason = f"{where}: {status} {error}"
    if is_good(status) and (lost := _why_not_indexed(result)):
        reason, status = f"{where}: {status}, but {lost}", 400  # as where a pipeline fails
    if (is_good(status) and not result.get("error")) or (status == 404 and action == "delete"):
        return DELIVERED
    if status == 409 and conditional:
        return CHANGED
    if of_template and (status in (403, 404) or any(state in error for state in _ABOUT_THE_INDEX)):
        return Failed(reason)
    if status in _UNAVAILABLE or not 400 <= status <= 599 or any(state in error for state in _NOT_THE_EVENTS_FAULT):
        return Unavailable(reason)
    if status >= 500:
        return Failed(reason)
    return Rejected(reason) if status != 400 or _OF_THE_DOCUMENT.search(error) else Doubt(reason)


def _why_not_indexed(result: Mapping[str, Any]) -> str:
    """Return why a document that was accepted is not in the index; empty if it is."""
    if result.get("result") == "noop":
        return "noop: an ingest pipeline of the index drops the document"
    if result.get("failure_store") == "used":
        return "the data stream refused the document, and keeps it in its failure store"
    return ""


def _named(listed: object, name: str) -> dict[str, Any] | None:
    """Return the entry of this name in a list of named entries."""
    entries = listed if isinstance(listed, list) else []
    return next((entry for entry in entries if entry.get("name") == name), None)
