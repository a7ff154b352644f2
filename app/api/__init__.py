"""The HTTP API: frontends post events, and operators inspect, change and monitor.

`app.server` serves it, `in_process` runs single routes for the console and the command line. Whoever calls its routes,
over the network or within the process, learns from `Refused` that one has refused.
"""

from collections.abc import Mapping
from typing import Any


class Refused(Exception):
    """The API has refused a call: `status`, and `body`, its problem (RFC 9457)."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(str(body.get("detail") or body.get("title") or status))
        self.status = status
        self.body = body

    @property
    def kind(self) -> str:
        """The problem's type, such as `bad-value`."""
        return str(self.body.get("type", "")).rpartition(":")[2]

    @property
    def sentences(self) -> list[str]:
        """What is wrong: one sentence for each wrong field, or the problem's detail."""
        fields = [
            f"{error['field']} {error['problem']}" + (f"; {error['hint']}" if error.get("hint") else "")
            for error in self.body.get("errors", ())
        ]
        return fields or [str(self)]

    @property
    def by_field(self) -> dict[str, str]:
        """What is wrong with each field, by its name."""
        wrong = {
            str(error["field"]): error["problem"] + (f"; {error['hint']}" if error.get("hint") else "")
            for error in self.body.get("errors", ())
        }
        return wrong or ({str(self.body["field"]): str(self)} if self.body.get("field") else {})
