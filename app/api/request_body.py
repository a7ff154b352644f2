"""Read and decompress a request's body, within its limits and its process's share of memory (`app.api.memory`)."""

import contextlib
from collections.abc import Iterator
from typing import IO, Any

import orjson
from flask import Request

from app.api.errors import ApiProblem, ClientGone
from app.api.memory import LARGE, SMALL, Cost, Share
from app.api.services import begin_reading, services, work_share
from app.events.errors import BadEvents
from app.events.limits import Allowance, NotUnpacked, UnpacksTooLong, unpacked
from app.events.parsing import HEADERS

_SMALL = 1 << 20  # bytes of a request without events
_CHUNK = 1 << 16
_DRAINED = 1 << 20
_WSGI_NAMES = {
    name: "CONTENT_TYPE" if name == "content-type" else f"HTTP_{name.upper().replace('-', '_')}" for name in HEADERS
}


def read_body(request: Request, limit: int) -> bytes | bytearray:
    """Return the body, decompressed if it is gzip. Raises `ApiProblem` as soon as it exceeds `limit` bytes.

    The request then has a share of the memory for what reading a body that is not small takes, and the turn to read if
    it is large.
    """
    try:
        return _read(request, limit)
    except ApiProblem:
        _drain(request.stream)
        raise


def event_headers(request: Request) -> dict[str, str]:
    """Return the headers of a request that matter to `app.events.parsing.parse`; all of them would take longer."""
    environ = request.environ
    return {name: environ[key] for name, key in _WSGI_NAMES.items() if key in environ}


def _read(request: Request, limit: int) -> bytes | bytearray:
    encoding = request.environ.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise ApiProblem(
            "unknown-encoding",
            f"Content-Encoding {encoding[:40]!r} is unknown; send gzip, or the body uncompressed",
            headers={"Accept-Encoding": "gzip, identity"},
        )
    announced = request.content_length or 0
    if announced > limit:
        raise _too_large(limit)
    body: bytes | bytearray = request.stream.read(min(SMALL, limit) + 1)  # fewer only at the end
    if len(body) > min(SMALL, limit):
        with services().memory.clients.share() as received:
            body = _received(bytearray(body), request.stream, limit, received)
    if len(body) < announced:
        detail = f"the body has {len(body)} bytes, and not the {announced} of its Content-Length"
        raise ApiProblem("bad-request", detail, reason="client-gone")
    if encoding in ("gzip", "x-gzip"):
        return _unpacked(body, limit)
    if len(body) > SMALL:
        cost = Cost()
        for start in range(0, len(body), _CHUNK):
            cost.add(body[start : start + _CHUNK])
        _begin(cost)
    return body


def _begin(cost: Cost) -> None:
    """Wait until the process may read a body, and has the memory for it."""
    if cost.size > LARGE:
        begin_reading()
    work_share().resize(cost.bytes)


def _received(body: bytearray, stream: IO[bytes], limit: int, received: Share) -> bytearray:
    """Return what the client sends; the memory for it is counted as it comes, not as it is announced."""
    while len(body) <= limit:
        received.resize(len(body))
        part = stream.read(min(_CHUNK, limit + 1 - len(body)))
        if not part:
            return body
        body += part  # it grows without being copied
    raise _too_large(limit)


def json_object(request: Request, limit: int = _SMALL) -> dict[str, Any]:
    """Return the JSON object in the body of a request without events, of at most `limit` bytes.

    The request must declare JSON as its content type: a web page cannot send that to another origin without permission.
    """
    if not request.is_json:
        raise ApiProblem("not-json", "send a JSON object with Content-Type: application/json")
    try:
        body = read_body(request, limit)
        Allowance(services().limits).check_text(body)
        content = orjson.loads(body)
    except BadEvents as error:
        raise ApiProblem("too-large", error.problem) from None
    except orjson.JSONDecodeError as error:
        raise ApiProblem("bad-request", f"the body is not JSON: {error.msg}", {"offset": error.pos}) from None
    if not isinstance(content, dict):
        raise ApiProblem("bad-request", "the body must be a JSON object, such as {}")
    return content


def _unpacked(packed: bytes | bytearray, limit: int) -> bytearray:
    """Unpack what is small at once; what is not, only after it has been measured, and there is memory for it."""
    body = bytearray()
    for part in _parts(packed, limit):
        body += part
        if len(body) > SMALL:
            body.clear()
            break
    else:
        return body
    with services().memory.unpacking.share() as turn:
        turn.resize(1)
        cost = Cost()
        for part in _parts(packed, limit):
            cost.add(part)
    _begin(cost)
    for part in _parts(packed, limit):
        body += part
    return body


def _parts(packed: bytes | bytearray, limit: int) -> Iterator[bytes]:
    """Yield the unpacked body in parts. Raises `ApiProblem`."""
    try:
        yield from unpacked(packed, limit)
    except UnpacksTooLong:
        raise _too_large(limit) from None
    except NotUnpacked as error:
        raise ApiProblem("bad-request", f"the gzip body {error}") from None


def _drain(stream: IO[bytes]) -> None:
    """Read a little more of a refused body; otherwise the server closes the connection, and the next request fails."""
    from gunicorn.http.errors import NoMoreData, ParseException  # noqa: PLC0415 - only a server reads from connections

    with contextlib.suppress(NoMoreData, ParseException, ClientGone):
        for _ in range(_DRAINED // _CHUNK):
            if not stream.read(_CHUNK):
                return


def _too_large(limit: int) -> ApiProblem:
    detail = f"a body has at most {limit} bytes, before and after decompression; "
    return ApiProblem("too-large", detail + "send it in parts, or raise BUCKETWIRE_BODY_LIMIT", {"limit": limit})
