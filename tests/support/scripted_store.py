"""An S3 server whose only bucket has what a test says, also what no real one would list."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, urlsplit
from xml.sax.saxutils import escape

from app.events.minio_json import timestamp
from app.outbox.engine.database import now_ms

BUCKET = "images"
_PAGE = 1000  # keys


@dataclass
class ScriptedStore:
    """The bucket: key to ETag, size and modification time (ms by the store's own clock, which is `behind`)."""

    port: int = 0
    objects: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    behind: int = 0  # ms
    requests: int = 0
    holding: threading.Event = field(default_factory=threading.Event)  # set when a last page is held back
    _may_end: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._may_end.set()

    def hold(self) -> None:
        """Hold back the last page of each listing, with what it has when it is asked for."""
        self.holding.clear()
        self._may_end.clear()

    def let_go(self) -> None:
        """Answer with the pages that are held back, and with others at once."""
        self._may_end.set()

    @property
    def clock(self) -> int:
        return now_ms() - self.behind

    def put(self, key: str, etag: str = "a", *, age: int = 3_600_000) -> int:
        """Put an object that was written some ms ago, and return its time."""
        self.objects[key] = (etag, 1, self.clock - age)
        return self.objects[key][2]

    @property
    def settings(self) -> dict[str, str]:
        """Of a source that lists it."""
        return {"endpoint": f"http://127.0.0.1:{self.port}", "bucket": BUCKET, "versions": "off", "grace": "0"}

    def page(self, after: str) -> str:
        """The answer to a request, for the keys after one."""
        keys = sorted((key for key in self.objects if key > after), key=str.encode)
        entries = "".join(
            f"<Contents><Key>{quote(key)}</Key><LastModified>{timestamp(modified)}</LastModified>"
            f"<ETag>&quot;{escape(etag)}&quot;</ETag><Size>{size}</Size></Contents>"
            for key, (etag, size, modified) in ((key, self.objects[key]) for key in keys[:_PAGE])
        )
        more = keys[_PAGE:]
        if not more and not self._may_end.is_set():
            self.holding.set()
            self._may_end.wait()
        token = f"<NextContinuationToken>{quote(keys[_PAGE - 1])}</NextContinuationToken>" if more else ""
        return (
            f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{BUCKET}</Name>'
            f"<EncodingType>url</EncodingType><IsTruncated>{str(bool(more)).lower()}</IsTruncated>{token}{entries}"
            "</ListBucketResult>"
        )


@contextmanager
def scripted_store() -> Iterator[ScriptedStore]:
    """Run one."""
    store = ScriptedStore()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            store.requests += 1
            asked = parse_qs(urlsplit(self.path).query)
            body = store.page(asked.get("continuation-token", [""])[0]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(store.clock / 1000, usegmt=True)

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler) as store.port:
        yield store


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Answer requests by a handler; the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
