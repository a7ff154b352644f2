"""The process of `host_of_worker`: it connects to what each line of its input names, and answers with a line.

Its arguments are the variables that nobody may read.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import cache
from typing import Any

from app.config import target_settings
from app.config.declared_types import source_type
from app.events.limits import Limits
from tests.services import LOOPBACK
from tests.support import sample_events
from workers.source_test import run_source_test
from workers.targets import create
from workers.targets.base import TargetUnavailable

_read: set[str] = set()
_OF_PYTHON = ("os", "collections.abc")
# It looks for the proxies among all variables.
_LOOKS_FOR_PROXIES = "getproxies_environment"


def _listen(forbidden: frozenset[str]) -> None:
    """Note who reads one of these variables from now on."""
    kind: Any = type(os.environ)
    get = kind.__getitem__

    def noted(self: Any, name: Any) -> Any:
        if name in forbidden:
            frame: Any = sys._getframe(1)
            while frame.f_globals.get("__name__") in _OF_PYTHON:
                frame = frame.f_back
            if frame.f_code.co_name != _LOOKS_FOR_PROXIES:
                _read.add(f"{name}: {frame.f_code.co_filename}:{frame.f_lineno}")
        return get(self, name)

    kind.__getitem__ = noted


def target(kind: str, values: Mapping[str, str]) -> str:
    """Open a target, and deliver an event to it."""
    with closing(create(kind, target_settings.load(kind, values))) as opened:
        try:
            opened.open()
            return str(list(opened.deliver([sample_events.put("a")], 1)))
        except TargetUnavailable as error:
            return str(error)


def source(kind: str, values: Mapping[str, str]) -> str:
    """Open a source, and read from it."""
    return str(list(run_source_test(target_settings.load(source_type(kind), values), {}, Limits())))


def client(name: str, port: int) -> str:
    """Have another part of the service connect."""
    from tests.support.http_readers import CLIENTS

    os.environ["NO_PROXY"] = LOOPBACK  # the host's proxies are meant for these
    try:
        CLIENTS[name](port)
    finally:
        del os.environ["NO_PROXY"]
    return "done"


def start() -> str:
    """Start a driver of Spark."""
    _spark()
    return "started"


def store(kind: str, values: Mapping[str, str]) -> str:
    """Have a Spark job read what a target holds."""
    from spark_jobs.stores import rows

    return f"{rows(_spark(), target_settings.load(kind, values), 'b', tasks=1).count()} rows"


def listing(values: Mapping[str, str]) -> str:
    """Have a Spark job list a bucket."""
    from app.config.bucket_settings import BucketSettings
    from spark_jobs.listings.s3_listing import Bucket, divided, listing

    bucket = Bucket.from_boto3("images", settings=target_settings.load(BucketSettings, values))
    ranges = divided(bucket, tasks=1)
    return f"{listing(_spark(), bucket, ranges, versioned=False).frame.count()} objects"


@cache
def _spark() -> Any:
    from spark_jobs.session import session

    # Java's home is the account's, whatever HOME says.
    more = {"spark.driver.extraJavaOptions": f"-Duser.home={os.environ['HOME']}"}
    opened = session("tests", master="local[1]", jars=os.environ["BUCKETWIRE_SPARK_JARS"], memory="512m", more=more)
    return _at_end.enter_context(opened)


_at_end = ExitStack()
WAYS: Mapping[str, Callable[..., str]] = {
    function.__name__: function for function in (target, source, client, start, store, listing)
}


if __name__ == "__main__":
    _listen(frozenset(sys.argv[1:]))
    with _at_end:
        for line in sys.stdin:
            told = json.loads(line)
            _read.clear()
            try:
                outcome = WAYS[told.pop("way")](**told)
            except Exception as error:  # noqa: BLE001 - it is told
                outcome = f"{type(error).__name__}: {error}"
            sys.stdout.write(json.dumps({"outcome": outcome, "read": sorted(_read)}) + "\n")
            sys.stdout.flush()
