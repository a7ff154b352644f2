"""Post one event, deliver it, and print the functions of ours that it passed: `python -m tests.support.event_trace`.

The environment has the settings: an outbox with one enabled target that a rule names, and a broker. The printed JSON is
a list of [file, qualified name] in the order of the first calls, for the API's part and for the worker's.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from tests import services
from tests.support.builders import event

ROOT = Path(__file__).parents[2]
PARTS = tuple(f"{ROOT}/{folder}/" for folder in ("app", "workers"))
Hop = tuple[str, str]  # file and qualified name


class Trace:
    """The functions of ours that this process has called since `begin`; comprehensions and the like are none."""

    def __init__(self) -> None:
        self.called: dict[Hop, None] = {}  # in the order of the first calls
        threading.setprofile(self._see)  # for threads that begin from now on, and go on to the end
        sys.setprofile(self._see)

    def begin(self) -> None:
        """Forget what was called before."""
        self.called = {}

    def _see(self, frame: FrameType, what: str, _argument: Any) -> None:
        code = frame.f_code
        if what == "call" and code.co_filename.startswith(PARTS) and not code.co_name.startswith("<"):
            self.called[os.path.relpath(code.co_filename, ROOT), code.co_qualname] = None

    def publishes(self) -> bool:
        """Whether a message was sent to the broker."""
        return any(name == "Broker.publish" for _, name in list(self.called))


def main(arn: str) -> None:
    """Trace one event that goes to this target."""
    from app.server.wsgi import app
    from workers import tasks

    def post() -> None:
        answer = app.test_client().post("/v1/events", json={"Records": [json.loads(event().record)]})
        assert answer.status_code == 202, answer.text
        services.until(trace.publishes)

    trace = Trace()
    post()  # the first event of a process has rules, settings and connections read, and threads started
    tasks.deliver(arn)
    trace.begin()
    post()
    by_api = list(trace.called)
    trace.begin()
    delivered = tasks.deliver(arn)
    json.dump([str(delivered), by_api, list(trace.called)], sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
