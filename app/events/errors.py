"""The errors for a refused body, with messages for its sender."""

import json
from typing import Any


class BadRecord(ValueError):
    """One record is refused: `field` is the path of a member in it, `problem` continues the sentence after it.

    `limit` is the number of bytes that the record exceeds, if that is why.
    """

    def __init__(self, field: str, problem: str, offset: int | None = None, limit: int | None = None) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem
        self.offset = offset
        self.limit = limit


class BadEvents(ValueError):
    """The whole body is refused. `problem` is a complete sentence that may be shown to the sender.

    `status` is the HTTP status of the answer. `index` is the record's index in the body from 0, `field` the member's
    path in it, `offset` the byte of the body (or of the JSON text in a member) at which parsing stopped; each is None
    if it does not apply, as is `limit`, the number of bytes that are exceeded.
    """

    def __init__(
        self,
        problem: str,
        status: int = 400,
        *,
        index: int | None = None,
        field: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.status = status
        self.index = index
        self.field = field
        self.offset = offset
        self.limit = limit


def excerpt(value: Any) -> str:
    """Return the value as JSON for a message, shortened; for a container only its type."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str) and len(value) > 60:
        value = f"{value[:57]}…"
    return json.dumps(value, ensure_ascii=False)[:80]
