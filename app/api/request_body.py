"""Read and decompress a request's body as a stream, within its limits: memory use never exceeds the limit."""

import contextlib
import zlib
from typing import IO, Any

import orjson
from flask import Request

from app.api.errors import ApiProblem
from app.events.parsing import HEADERS

_SMALL = 1 << 20  # bytes of a request without events
_CHUNK = 1 << 16
_DRAINED = 1 << 20
_GZIP = 31  # zlib's code for a gzip header and the largest window
_WSGI_NAMES = {
    name: "CONTENT_TYPE" if name == "content-type" else f"HTTP_{name.upper().replace('-', '_')}" for name in HEADERS
}


def read_body(request: Request, limit: int) -> bytes:
    """Return the body, decompressed if it is gzip. Raises `ApiProblem` as soon as it exceeds `limit` bytes."""
    try:
        return _read(request, limit)
    except ApiProblem:
        _drain(request.stream)
        raise


def event_headers(request: Request) -> dict[str, str]:
    """Return the headers of a request that matter to `app.events.parsing.parse`; all of them would take longer."""
    environ = request.environ
    return {name: environ[key] for name, key in _WSGI_NAMES.items() if key in environ}


def _read(request: Request, limit: int) -> bytes:
    encoding = request.environ.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise ApiProblem(
            "unknown-encoding",
            f"Content-Encoding {encoding[:40]!r} is unknown; send gzip, or the body uncompressed",
            headers={"Accept-Encoding": "gzip, identity"},
        )
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    if encoding in ("gzip", "x-gzip"):
        return _unpacked(request.stream, limit)
    body = request.stream.read(limit + 1)
    if len(body) > limit:
        raise _too_large(limit)
    return body


def json_object(request: Request, limit: int = _SMALL) -> dict[str, Any]:
    """Return the JSON object in the body of a request without events, of at most `limit` bytes.

    The request must declare JSON as its content type: a web page cannot send that to another origin without permission.
    """
    if not request.is_json:
        raise ApiProblem("not-json", "send a JSON object with Content-Type: application/json")
    try:
        content = orjson.loads(read_body(request, limit))
    except orjson.JSONDecodeError as error:
        raise ApiProblem("bad-request", f"the body is not JSON: {error.msg}", {"offset": error.pos}) from None
    if not isinstance(content, dict):
        raise ApiProblem("bad-request", "the body must be a JSON object, such as {}")
    return content


def _unpacked(stream: IO[bytes], limit: int) -> bytes:
    unpacked = bytearray()
    packed = 0
    inflater = zlib.decompressobj(_GZIP)
    while chunk := stream.read(_CHUNK):
        packed += len(chunk)
        if packed > limit:
            raise _too_large(limit)
        while chunk:
            if inflater.eof:
                inflater = zlib.decompressobj(_GZIP)  # a gzip body may have several members
            try:
                unpacked += inflater.decompress(chunk, limit + 1 - len(unpacked))
            except zlib.error as error:
                raise ApiProblem("bad-request", f"the body is not gzip: {error}") from None
            if len(unpacked) > limit:
                raise _too_large(limit)
            chunk = inflater.unconsumed_tail or inflater.unused_data
    if not inflater.eof:
        raise ApiProblem("bad-request", "the gzip body is truncated")
    return bytes(unpacked)


def _drain(stream: IO[bytes]) -> None:
    """Read a little more of a refused body; otherwise the server closes the connection, and the next request fails."""
    from gunicorn.http.errors import ParseException  # noqa: PLC0415 - only a server reads from connections

    with contextlib.suppress(ParseException):
        for _ in range(_DRAINED // _CHUNK):
            if not stream.read(_CHUNK):
                return


def _too_large(limit: int) -> ApiProblem:
    detail = f"a body has at most {limit} bytes, before and after decompression; "
    return ApiProblem("too-large", detail + "send it in parts, or raise BUCKETWIRE_BODY_LIMIT", {"limit": limit})
