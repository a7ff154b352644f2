"""Read and decompress requests' bodies, and send answers, within the memory that a process of the API has for them.

That memory is in proportion to the limit of a body, in two pools. What clients are waited for (bodies that are not
complete, answers that are being sent) is in one, what the process itself works with (a body that is parsed, its events,
an answer that is made) in the other: whoever has a share of the latter waits for nobody, so it is soon free again. Who
wants more than is left waits for a moment, in order; then the request is refused with 503. Small requests have no
share, so that they never wait for one.
"""

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import IO, Any, Final

import orjson
from flask import Request

from app.api.errors import ApiProblem, ClientGone
from app.api.services import begin_reading, services, work_share
from app.api.wsgi_layers import Refusal, protecting, set_refusal
from app.events.errors import BadEvents
from app.events.limits import Allowance, NotUnpacked, UnpacksTooLong, unpacked
from app.events.parsing import HEADERS

SMALL = 1 << 16  # bytes of a body or an answer that is not counted
_LEAST_BODY = 32 * 2**20  # of the limits below: an event may have 20 MiB whatever the limit of a body is
_CLIENTS, _WORK = 3, 5  # bodies of the largest size: what waits for clients, and what is worked with
LARGE = 4 * 2**20  # bytes of a body, unpacked, that is not read beside another such: batches of events have fewer
_UNPACKING = 1  # bodies that are unpacked at the same time, which occupies a core
_READING = 1  # large bodies that are parsed at the same time: no other thread runs meanwhile, for 0.1 to 0.5 s of each
_PATIENCE = 2.0  # seconds
_MAX_WAITING = 6  # threads of a pool: others must go on with small requests
_TRIMMED = 8 * 2**20  # bytes of a share after which free memory is given back
_TRIM_SECONDS = 0.5  # between two times

# Bytes that a text takes once it is parsed and written, for each of its bytes, comma, and brace or bracket. Measured.
_OF_ASCII, _OF_OTHERS, _OF_VALUE, _OF_CONTAINER = 2.5, 6.5, 80, 250

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's `mallopt`
_LARGE_BLOCK = 1 << 20
_MAX_OBJECT = 1 << 20  # bytes of a request without events
_CHUNK = 1 << 16
_DRAINED = 1 << 20
_WSGI_NAMES = {
    name: "CONTENT_TYPE" if name == "content-type" else f"HTTP_{name.upper().replace('-', '_')}" for name in HEADERS
}


class Pool:
    """So many bytes, and who waits for them."""

    def __init__(self, limit: int, patience: float = _PATIENCE) -> None:
        self.limit: Final = limit
        self.used = 0
        self._patience = patience
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    def take(self, size: int) -> None:
        """Take bytes, as soon as there are so many. Raises `ApiProblem` if that takes too long."""
        with self._changed:
            if not self._waiting and self.used + size <= self.limit:
                self.used += size
                return
            if len(self._waiting) >= _MAX_WAITING:
                raise _overloaded()
            mine = object()
            self._waiting.append(mine)
            try:
                if not self._changed.wait_for(lambda: self._has_room(mine, size), self._patience):
                    raise _overloaded()
                self.used += size
            finally:
                self._waiting.remove(mine)
                self._changed.notify_all()

    def give(self, size: int) -> None:
        """Give bytes back."""
        with self._changed:
            self.used -= size
            self._changed.notify_all()

    def share(self) -> "Share":
        """Return a share of nothing yet."""
        return Share(self)

    def _has_room(self, waiting: object, size: int) -> bool:
        return self._waiting[0] is waiting and self.used + size <= self.limit


class Share:
    """What one request has of a pool: never more than all, so that the largest has it for itself."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.size = 0
        self.most = 0

    def __enter__(self) -> "Share":
        return self

    def __exit__(self, *_error: object) -> None:
        self.resize(0)

    def resize(self, size: int) -> None:
        """Have so many bytes from now on. Raises `ApiProblem` if they are more than before and there is no room."""
        size = min(size, self._pool.limit)
        if size > self.size:
            self._pool.take(size - self.size)
        elif size < self.size:
            self._pool.give(self.size - size)
        self.size, self.most = size, max(self.most, size)


class Memory:
    """The pools of a process."""

    def __init__(self, body_limit: int) -> None:
        unit = max(body_limit, _LEAST_BODY)
        self.clients = Pool(_CLIENTS * unit)
        self.work = Pool(_WORK * unit)
        self.unpacking = Pool(_UNPACKING)
        self.reading = Pool(_READING)
        self._trim: Callable[[int], int] | None = None
        self._trimmed_at = 0.0
        with suppress(OSError, AttributeError):  # another C library has its own ways
            self._trim = ctypes.CDLL(None).malloc_trim

    def finish(self, share: Share) -> None:
        """Give a share of the work back, and to the system what is free now."""
        share.resize(0)
        now = time.monotonic()
        if self._trim is not None and share.most >= _TRIMMED and now > self._trimmed_at + _TRIM_SECONDS:
            self._trimmed_at = now
            self._trim(0)


class Cost:
    """Estimate the memory that a body takes while it is read, from all its parts."""

    def __init__(self) -> None:
        self.size = self._values = self._containers = 0
        self._is_ascii = True

    def add(self, part: bytes | bytearray) -> None:
        """Add a part, during which no other thread runs."""
        self.size += len(part)
        self._values += part.count(b",")
        self._containers += part.count(b"{") + part.count(b"[")
        self._is_ascii = self._is_ascii and part.isascii()

    @property
    def bytes(self) -> int:
        """The estimate, with the body itself."""
        of_text = self.size * (_OF_ASCII if self._is_ascii else _OF_OTHERS)
        return int(self.size + of_text) + self._values * _OF_VALUE + self._containers * _OF_CONTAINER


def return_freed_blocks() -> None:
    """Have glibc give large blocks back when they are freed.

    By itself it raises the size from which it does so, up to 32 MiB, and keeps what is smaller: gigabytes, after some
    large requests in many threads.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)
        mallopt(_TRIM_THRESHOLD, _LARGE_BLOCK)


class BoundedAnswers:
    """A WSGI application whose larger answers have a share of the memory until they have been sent."""

    def __init__(self, app: Any, memory: Memory) -> None:
        self._app = app
        self._memory = memory

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer, with the headers of every answer; with 503 if too much is being sent already."""
        start_response = protecting(start_response)
        begun: list[Any] = []
        length = 0

        def begin(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            nonlocal length
            length = next((int(value) for name, value in headers if name == "Content-Length"), 0)
            if length <= SMALL:
                return start_response(status, headers, *error)
            begun[:] = status, headers, *error
            return None

        answer = self._app(environ, begin)
        if not begun:
            return answer  # type: ignore[no-any-return]  # the application's
        sent = self._memory.clients.share()
        try:
            sent.resize(length)
        except ApiProblem as problem:
            _close(answer)
            set_refusal(environ, Refusal(problem.kind))
            return problem.response()(environ, start_response)
        start_response(*begun)
        return _Sent(answer, sent)


class _Sent:
    """An answer that gives its share back when it is closed."""

    def __init__(self, answer: Iterable[bytes], share: Share) -> None:
        self._answer = answer
        self._parts = iter(answer)
        self._share = share

    def __iter__(self) -> "_Sent":
        return self

    def __next__(self) -> bytes:
        return next(self._parts)

    def close(self) -> None:
        """Close the answer."""
        try:
            _close(self._answer)
        finally:
            self._share.resize(0)


def _close(answer: Any) -> None:
    if hasattr(answer, "close"):
        answer.close()


def _overloaded() -> ApiProblem:
    return ApiProblem(
        "overloaded",
        "this process of the API holds as much for other large requests as it may; nothing was done for this one. Send "
        "it again later, or in smaller parts",
    )


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


def json_object(request: Request, limit: int = _MAX_OBJECT) -> dict[str, Any]:
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

    with suppress(NoMoreData, ParseException, ClientGone):
        for _ in range(_DRAINED // _CHUNK):
            if not stream.read(_CHUNK):
                return


def _too_large(limit: int) -> ApiProblem:
    detail = f"a body has at most {limit} bytes, before and after decompression; "
    return ApiProblem("too-large", detail + "send it in parts, or raise BUCKETWIRE_BODY_LIMIT", {"limit": limit})
