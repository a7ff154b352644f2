"""Keep what a real frontend sends: `python -m tests.services.capture seaweedfs [OPERATION …]`.

Each operation of the sender contract is one line of `tests/fixtures/frontends/sequences/NAME.jsonl`: its bodies as they
came, each once, in order of arrival, with the newest versions that the bucket lists in the end; and the same after some
of its objects were put again.

`SEAWEEDFS_FOLDER=/place/of/another/version … capture seaweedfs-4.15 [OPERATION …]` keeps what that version sends, in a
file of its own.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests import services
from tests.services.senders import SENDERS
from tests.services.server_process import LOOPBACK, free_port
from tests.support.sender_operations import OPERATIONS, Buckets, Operation, again

FOLDER = Path(__file__).parents[1] / "fixtures" / "frontends" / "sequences"
MANY = 4
QUIET = {"ceph": 120.0}  # seconds without a post after which no more is expected; Ceph takes over queues after 90 s
USUALLY_QUIET = 4.0


@contextmanager
def recording(bodies: list[str]) -> Iterator[str]:
    """The address of a receiver that keeps every body that is posted to it."""

    class Receiver(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer((LOOPBACK, free_port()), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/v1/events"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def listing(at: Buckets, bucket: str) -> dict[str, dict[str, Any]]:
    """The newest version of each object, from the listing that a reconciliation reads."""
    found = at.listed(bucket)
    if at.s3.get_bucket_versioning(Bucket=bucket).get("Status"):
        pages = at.s3.get_paginator("list_object_versions").paginate(Bucket=bucket)
        found = {one["Key"]: one for page in pages for one in page.get("Versions", ()) if one["IsLatest"]}
    return {
        key: {
            "etag": one["ETag"].strip('"'),
            "size": one["Size"],
            "version": one.get("VersionId", ""),
            "modified": int(one["LastModified"].timestamp() * 1000),
        }
        for key, one in found.items()
    }


def capture(at: Buckets, operations: Sequence[Operation], bodies: list[str]) -> Iterator[dict[str, Any]]:
    """Do them one after the other, each in a bucket of its own, and yield what was sent for each."""
    buckets = {operation.__name__: operation(at) for operation in operations}
    at.wait()
    captured = {
        name: {
            "operation": name,
            "bucket": bucket,
            "bodies": [body for body in dict.fromkeys(bodies) if bucket in body],
            "listing": listing(at, bucket),
            "listed_at": int(time.time() * 1000),
        }
        for name, bucket in buckets.items()
    }
    bodies.clear()
    for bucket in buckets.values():
        again(at, bucket)
    at.wait()
    for name, bucket in buckets.items():
        next_bodies = [body for body in dict.fromkeys(bodies) if bucket in body]
        yield captured[name] | {"again": {"bodies": next_bodies, "listing": listing(at, bucket)}}


def quiet(name: str, bodies: list[str]) -> None:
    """Return when nothing was sent for a while."""
    known, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET.get(name, USUALLY_QUIET):
        if len(bodies) != known:
            known, since = len(bodies), time.monotonic()
        time.sleep(0.1)


def main(words: list[str]) -> None:
    release, *operations = words
    name = release.partition("-")[0]
    chosen = [one for one in OPERATIONS if not operations or one.__name__ in operations]
    file = FOLDER / f"{release}.jsonl"
    old = (
        {}
        if not file.exists()
        else {json.loads(line)["operation"]: line.decode() for line in file.read_bytes().splitlines()}
    )
    bodies: list[str] = []
    with ExitStack() as stack:
        endpoint = stack.enter_context(recording(bodies))
        sender: services.Sender = stack.enter_context(SENDERS[name](endpoint, "a-token").start())
        s3 = sender.boto3()
        stack.callback(s3.close)
        at = Buckets(sender, s3, MANY, lambda: quiet(name, bodies))
        possible = [operation for operation in chosen if not at.cannot(operation)]
        for one in capture(at, possible, bodies):
            old[one["operation"]] = json.dumps(one, ensure_ascii=False, separators=(",", ":"))
            sys.stdout.write(f"{one['operation']}: {len(one['bodies'])} bodies\n")
    lines = [old[operation.__name__] for operation in OPERATIONS if operation.__name__ in old]
    file.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main(sys.argv[1:])
