"""Run `celery … flower` on a loopback address: `python -m bucketwire.start workers.local_flower -A … flower …`.

It has no password there, so it answers only requests for this machine's own names, or for the host of
`BUCKETWIRE_FLOWER_URL`. Otherwise a web page could read queues and configuration by a name of its own that its DNS
server resolves to this machine (DNS rebinding).
"""

import os
import runpy
import sys
from typing import Any
from urllib.parse import urlsplit

import flower.command
from tornado.httputil import HTTPServerRequest
from tornado.web import ErrorHandler

from app.config.networks import is_loopback
from app.config.settings import Settings

_MISDIRECTED = 421
_PUBLIC_HOST = urlsplit(Settings.from_environ(os.environ).flower_url).hostname


class LocalFlower(flower.command.Flower):  # type: ignore[misc]  # flower ships no types
    """Flower for this machine only."""

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        """Return what answers the request: an error for a host that is not this machine."""
        if _is_known(request.host_name):
            return super().find_handler(request, **options)
        return self.get_handler_delegate(request, ErrorHandler, {"status_code": _MISDIRECTED})


def _is_known(host: str) -> bool:
    return is_loopback(host) or host.lower() == _PUBLIC_HOST


if __name__ == "__main__":
    flower.command.Flower = LocalFlower
    sys.argv[0] = "celery"
    runpy.run_module("celery", run_name="__main__", alter_sys=True)
