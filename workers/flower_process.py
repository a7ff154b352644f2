"""Run `celery … flower`: `python -m bucketwire.start workers.flower_process -A … flower …`.

Without a password, which it needs on any but a loopback address, whatever a web page has a browser on this machine send
would be answered. It answers only requests for this machine's own names then, or for the host of
`BUCKETWIRE_FLOWER_URL`: otherwise a page could read queues and configuration by a name of its own that its DNS server
resolves to this machine (DNS rebinding). Of what a page of another origin sends, also of another port, it answers only
links to its own pages, and no answer allows such a page to read it or to show it in a frame.
"""

import os
import runpy
import sys
from typing import Any
from urllib.parse import urlsplit

import flower.command
from flower.views import BaseHandler
from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.web import ErrorHandler

from app import service_manager
from app.config.networks import is_loopback
from app.config.settings import Settings

_FORBIDDEN, _MISDIRECTED = 403, 421
_READS = frozenset({"GET", "HEAD"})
_PUBLIC_HOST = urlsplit(Settings.from_environ(os.environ).flower_url).hostname
_HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class NotifyingFlower(flower.command.Flower):  # type: ignore[misc]  # flower ships no types
    """Flower that tells the service manager when it answers."""

    def start(self) -> None:
        """Run its loop until it ends."""
        self.io_loop.add_callback(service_manager.notify, service_manager.READY)
        super().start()


class LocalFlower(NotifyingFlower):
    """Flower for this machine only."""

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        """Return what answers the request: an error for another host than this machine, and for another origin."""
        status = 0
        if not _is_known(request.host_name):
            status = _MISDIRECTED
        elif not _is_own_page(request.method or "", request.headers):
            status = _FORBIDDEN
        if status:
            return self.get_handler_delegate(request, ErrorHandler, {"status_code": status})
        return super().find_handler(request, **options)


def _is_known(host: str) -> bool:
    return is_loopback(host) or host.lower() == _PUBLIC_HOST


def _is_own_page(method: str, headers: HTTPHeaders) -> bool:
    """Return whether no browser says that a page of another origin sent this.

    A browser sends `Origin` with what is no read, with requests whose answer the page wants to read, and to open a
    WebSocket; `Sec-Fetch-Site` with everything. A program sends neither.
    """
    origin = headers.get("Origin")
    if origin is not None:
        try:
            parts = urlsplit(origin)
            if parts.netloc != headers.get("Host") and (not parts.hostname or parts.hostname != _PUBLIC_HOST):
                return False
        except ValueError:
            return False
    return method in _READS or headers.get("Sec-Fetch-Site", "same-origin") in ("same-origin", "none")


def _set_default_headers(handler: Any) -> None:
    """Take the place of Flower's own, which let the pages of every origin read what needs no password."""
    for name, value in _HEADERS.items():
        handler.set_header(name, value)


if __name__ == "__main__":
    has_password = bool(os.environ.get("FLOWER_BASIC_AUTH"))
    flower.command.Flower = NotifyingFlower if has_password else LocalFlower
    if not has_password:
        BaseHandler.set_default_headers = _set_default_headers
    sys.argv[0] = "celery"
    runpy.run_module("celery", run_name="__main__", alter_sys=True)
