"""What is said of a body that cannot be taken, to the person who sent it."""

import json
from typing import Any


class BadRecord(ValueError):
    """One record cannot be taken: `field` is the member's path in it, `problem` reads on from that name."""

    def __init__(self, field: str, problem: str, offset: int | None = None) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem
        self.offset = offset


class BadEvents(ValueError):
    """Nothing of the body was taken. `problem` is a whole sentence that may be shown to the sender.

    `status` is the HTTP status that fits; `index` the record's place in the body from 0, `field` the member's path in
    it, `offset` the byte of the body (or of the JSON text in a member) at which reading stopped; None where it does
    not apply.
    """

    def __init__(
        self,
        problem: str,
        status: int = 400,
        *,
        index: int | None = None,
        field: str | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.status = status
        self.index = index
        self.field = field
        self.offset = offset


def excerpt(value: Any) -> str:
    """The value as JSON for a message, cut to a readable length; of a container only its kind."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str) and len(value) > 60:
        value = f"{value[:57]}…"
    return json.dumps(value, ensure_ascii=False)[:80]
