"""Requests to the API, and what is read from its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import fromstring

import httpx
import orjson

from tests.support.builders import event


def body(*names: str) -> bytes:
    """A body with a record for each key, unlike any other."""
    return b'{"Records":[%s]}' % b",".join(event(name).record.encode() for name in names)


def document(inner: str) -> bytes:
    return f"<NotificationConfiguration>{inner}</NotificationConfiguration>".encode()


def code(response: httpx.Response, status: int) -> str:
    """The code of a refusal; every one is S3's XML."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/xml")
    root = fromstring(response.content)
    assert root.tag == "Error"
    assert root.findtext("RequestId") == response.headers["x-amz-request-id"]
    return root.findtext("Code") or ""


EVENTS = "events=s3:ObjectCreated:*&events=s3:ObjectRemoved:*"


@dataclass
class Listener:
    """One open stream."""

    response: httpx.Response
    pings: int = 0
    dropped: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lines = self.response.iter_lines()

    def __next__(self) -> dict[str, Any]:
        """The next event's line."""
        for line in self._lines:
            found: dict[str, Any] = orjson.loads(line.strip() or "{}")
            if found.get("Records"):
                return found
            self.pings += found == {"Records": None}
            if "Dropped" in found:
                self.dropped.append(found["Dropped"])
        raise AssertionError("the stream has ended")

    def keys(self, count: int) -> list[str]:
        """The keys of the next events."""
        return [key_of(next(self)) for _ in range(count)]


def key_of(line: dict[str, Any]) -> str:
    [record] = line["Records"]
    return str(record["s3"]["object"]["key"])
