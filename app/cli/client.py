"""The client of the API: of the service at a URL, or of this machine's service, whose routes this process then runs.

What a route answers is the same either way, and so is what it refuses.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

import orjson

from app.cli_common import CommandError
from app.config.arn import SourceId, TargetId
from app.events.model import EVENT_ID

MAX_PAGE = 1000  # rows, the API's largest page


class Transport(Protocol):
    """What calls the routes: `app.api.in_process.CommandApi`, or `app.cli.http_api.HttpApi`."""

    def call(self, method: str, path: str, query: str, body: bytes | None) -> dict[str, Any]:
        """Call a route with a decoded path, and return its JSON, {} if it answers nothing. Raises `Refused`."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class Client:
    """Calls of the API. Each raises `Refused` for what the API refuses, and `CommandError` if it cannot be called.

    A query's parameter that is None is left out, a list is comma-separated, and a flag is sent only if it is set.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Return what a route shows."""
        return self._transport.call("GET", path, _query(query), None)

    def change(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> dict[str, Any]:
        """Change something; `body` is sent as JSON."""
        try:
            content = orjson.dumps(body or {})
        except orjson.JSONEncodeError as error:  # YAML and JSON can write half a surrogate pair
            raise CommandError(f"a text cannot be sent: {error}") from None
        return self._transport.call(method, path, _query(query), content)

    def pages(self, path: str, member: str, *, limit: int, after: Any = None, **query: Any) -> list[dict[str, Any]]:
        """Return the first `limit` rows of a list that comes in pages, after the row or page `after`."""
        return list(self.each(path, member, limit=limit, after=after, **query))

    def each(self, path: str, member: str, *, limit: int, after: Any = None, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield the same rows; one page of them is in memory at a time."""
        while limit:
            page = self.get(path, limit=min(MAX_PAGE, limit), after=after, **query)
            yield from page[member]
            limit, after = limit - len(page[member]), page["next"]
            if after is None:
                break

    def close(self) -> None:
        """Close the connection; what was changed on this machine wakes the service."""
        self._transport.close()


def target_path(target: TargetId) -> str:
    """Return the path of a target's routes."""
    return f"/v1/targets/{target.type}/{target.name}"


def source_path(source: SourceId) -> str:
    """Return the path of a source's routes."""
    return f"/v1/sources/{source.type}/{source.name}"


def event_path(event_id: str) -> str:
    """Return the path of an event. Raises `CommandError` for what is no id: `stream` is a route that never ends."""
    if not EVENT_ID.fullmatch(event_id):
        raise CommandError(f"there is no event {event_id[:100]!r}; an id has 32 hexadecimal digits")
    return f"/v1/events/{event_id}"


def named_path(collection: str, name: str, missing: str) -> str:
    """Return the path of what a user calls `name`, below the path of its collection.

    Raises `CommandError` with `missing` for a name that leads elsewhere: a client of HTTP removes `..` from a path.
    """
    if "/" in name or name in ("", ".", ".."):
        raise CommandError(missing)
    return f"{collection}/{name}"


def target_name(target: Mapping[str, Any]) -> str:
    """Return a target's name as commands take it, `type:name`."""
    return f"{target['type']}:{target['name']}"


def _query(query: Mapping[str, Any]) -> str:
    return urlencode({name: text for name, value in query.items() if (text := _text(value)) is not None})


def _text(value: Any) -> str | None:
    match value:
        case None | False:
            return None
        case True:
            return "true"
        case list() | tuple():
            return ",".join(map(str, value)) or None
        case _:
            return str(value)
