"""Connection pools for HTTP targets: one endpoint each, through a proxy or with a limit on the addresses.

urllib3 instead of requests, which is built on it: 160-180 us per request against 330-610
(docs/decisions/0007-urllib3-for-webhooks.md). The connections distinguish "not connected" from "no answer".

What targets need of urllib3's errors and answers is read here, and a request or an answer is written down.
"""

import base64
import contextlib
import logging
import re
import socket
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from urllib3 import BaseHTTPResponse, ProxyManager, Timeout
from urllib3.connection import HTTPConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InvalidHeader,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    SSLError,
)
from urllib3.util import Retry, Url, parse_url

from app.config.fields.addresses import HostPort
from app.config.networks import is_loopback, is_public
from app.http_pools import (
    ClosedWhileIdle,
    StrictConnection,
    StrictPool,
    StrictTlsConnection,
    StrictTlsPool,
    new_connection,
)
from workers.delivery.outcomes import HttpMessage
from workers.targets import sockets, tcp
from workers.targets.base import TargetUnavailable
from workers.targets.tcp import Endpoint


class PrivateAddressError(HTTPError):
    """The name resolves to an address that is not public."""


def public_addresses(host: str, port: int) -> list[str]:
    """Return all addresses of a name. Raises `PrivateAddressError` if one is not public, `OSError` of the resolver."""
    addresses = _addresses(host, port)
    for address in addresses:
        if not is_public(address):
            named = address if host.strip("[]") == address else f"{host} is {address}, which"
            raise PrivateAddressError(f"{named} is not a public address; set allow_private=on if that is meant")
    return addresses


def _addresses(host: str, port: int) -> list[str]:
    infos = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in infos))


class _GuardedConnection(StrictConnection, HTTPConnection):
    """A connection that, if `guarded`, is only made to public addresses; a `Deadline` cuts it."""

    def __init__(self, *positional: Any, guarded: bool = False, **options: Any) -> None:
        super().__init__(*positional, **options)
        self.guarded = guarded

    def _new_conn(self) -> socket.socket:
        made = _socket(self, super()._new_conn)
        sockets.watch(made.fileno())
        return made

    def request(self, *request: Any, **options: Any) -> None:
        """Send a request, over a new connection or the one of the request before."""
        if self.sock is not None:
            sockets.watch(self.sock.fileno())
        super().request(*request, **options)


class PlainConnection(_GuardedConnection):
    """Reports every failure before the request was sent as a connection error; `guarded` as in `http_pool`."""

    def connect(self) -> None:
        """Connect. Raises `ConnectTimeoutError` or `NewConnectionError`."""
        try:
            super().connect()
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"no connection within {self.timeout} s") from error
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error


class TlsConnection(_GuardedConnection, StrictTlsConnection):
    """Like `PlainConnection`, with TLS."""

    def connect(self) -> None:
        """Connect. Raises `ConnectTimeoutError`, `NewConnectionError` or `ssl.SSLError`."""
        try:
            super().connect()
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"no TLS connection within {self.timeout} s") from error
        except ssl.SSLError:
            raise
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error
        # urllib3 warns about each request on an unverified connection; here the settings ask for one.
        self.is_verified = True


def _socket(connection: _GuardedConnection, connect: Callable[[], socket.socket]) -> socket.socket:
    """Resolve once, check every address if it is `guarded`, and connect to exactly these addresses.

    The name is not resolved again. An address that answers nothing leaves time for the others, as in `tcp.connect`.
    """
    name, timeout = connection._dns_host, connection.timeout
    try:
        addresses = (public_addresses if connection.guarded else _addresses)(name, connection.port)
    except OSError as error:
        raise NameResolutionError(name, connection, error) from error  # type: ignore[arg-type]  # getaddrinfo's own
    places = tcp.ordered([(address, connection.port) for address in addresses], lambda place: place)
    failure: Exception = NewConnectionError(connection, f"{name} has no address")
    ends = time.monotonic() + timeout if isinstance(timeout, int | float) else None
    try:
        for left, place in zip(range(len(places), 0, -1), places, strict=True):
            connection.host = place[0]
            if ends is not None:
                connection.timeout = tcp.share(ends, left)
            try:
                opened = connect()
            except (NewConnectionError, ConnectTimeoutError) as error:
                failure = error
            else:
                opened.settimeout(timeout)
                tcp.made(opened.fileno(), place, places)
                return opened
    finally:
        connection.host = name  # TLS and the Host header use this name
        connection.timeout = timeout
    raise failure


# A connection as urllib3 writes it at the beginning of some messages.
_OBJECT = re.compile(r"\A(<[^>]*>|\w+\(host=[^()]*\)): (TLS: )?")
# Of a body and of all headers. What is kept is far less; until a batch ends, each of its failed events has this.
_MAX_TEXT_BYTES = 8 * 1024


def describe_http_error(error: HTTPError) -> str:
    """Return the error as text, without urllib3's object names."""
    text = str(error.args[-1] if error.args else error) or type(error).__name__
    text = text.rpartition(": Failed to establish a new connection: ")[2] or text
    return _OBJECT.sub("", text)


def http_message(line: str, headers: Mapping[str, str], body: bytes) -> HttpMessage:
    """Return a request or an answer for an `Exchange`, with as much of it as is needed to shorten it later."""
    some: dict[str, str] = {}
    left = _MAX_TEXT_BYTES
    for name, value in headers.items():
        left -= len(name) + len(value)
        if left < 0:
            break
        some[name] = value
    return HttpMessage(line, some, body[:_MAX_TEXT_BYTES].decode(errors="replace"), len(body))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return an answer's Retry-After in seconds; None if it has none, or an invalid one."""
    text = headers.get("Retry-After")
    try:
        return Retry().parse_retry_after(text) if text is not None else None
    except (InvalidHeader, ValueError, OverflowError):  # the latter two for numbers and dates out of all proportion
        return None


# urllib3 writes whole URLs into its warnings and debug lines, and a webhook's URL may be a secret.
logging.getLogger("urllib3").setLevel(logging.ERROR)

_PORTS = {"http": 80, "https": 443}


def basic_auth(login: str) -> str:
    """Return the header value for a URL's percent-encoded `user:password`; in UTF-8, as in Go."""
    return f"Basic {base64.b64encode(urllib.parse.unquote_to_bytes(login)).decode()}"


class _PlainPool(StrictPool):
    ConnectionCls: type[StrictConnection] = PlainConnection

    def is_same_host(self, url: str) -> bool:  # noqa: ARG002 - it is the same for every URL
        """Return true: a proxy that forwards is sent whole URLs."""
        return True

    def urlopen(self, *request: Any, **options: Any) -> BaseHTTPResponse:
        """Make a request; once more by a new connection if the server had closed the kept-alive one."""
        try:
            return super().urlopen(*request, **options)
        except ClosedWhileIdle:
            if sockets.is_over():  # it is we who closed it
                raise
        with new_connection():
            return super().urlopen(*request, **options)


class _SecurePool(_PlainPool, StrictTlsPool):
    ConnectionCls = TlsConnection


@dataclass(frozen=True)
class HttpPool:
    """A pool of connections to one endpoint, and the request target for its requests."""

    pool: StrictPool
    target: str
    where: str
    _endpoint: Url
    _proxy: Url | None
    _context: ssl.SSLContext | None
    _guarded: bool

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: Timeout,
        *,
        read: bool = True,
    ) -> BaseHTTPResponse:
        """Send one request without retries and redirects; without `read`, the caller reads the body, as it was sent.

        If an address of the endpoint's name closes a new connection without a byte of an answer, the request is sent
        to the next one. Raises urllib3's `HTTPError`.
        """
        while True:
            with tcp.Attempt() as attempt:
                try:
                    return self.pool.urlopen(
                        method,
                        path,
                        body=body,
                        headers=headers,
                        retries=False,
                        redirect=False,
                        timeout=timeout,
                        preload_content=read,
                        decode_content=read,
                    )
                except (ProtocolError, SSLError, NewConnectionError):
                    if not attempt.passes_over() or sockets.is_over():
                        raise

    def check(self, timeout: float, *, patience: float = 0) -> None:
        """Connect, with TLS if the endpoint has it, send nothing, and disconnect. Raises urllib3's `HTTPError`.

        With `patience` (seconds) also check that the endpoint does not close the connection during that time. An
        endpoint does so if it has no server behind it, or requires a client certificate: TLS 1.3 reports that only
        after the handshake. With a proxy the connection is to the proxy, and the guard resolves the endpoint's name on
        this machine.
        """
        self.guard_behind_proxy()
        reached = self._proxy or self._endpoint
        host, port = reached.host or "", reached.port or _PORTS[reached.scheme or "http"]
        guarded = self._guarded and self._proxy is None
        if reached.scheme == "https":
            connection: HTTPConnection = TlsConnection(
                host, port, timeout=timeout, ssl_context=self._context, guarded=guarded
            )
        else:
            connection = PlainConnection(host, port, timeout=timeout, guarded=guarded)
        try:
            connection.connect()
            if patience and connection.sock is not None:
                connection.sock.settimeout(patience)
                with contextlib.suppress(TimeoutError):
                    if not connection.sock.recv(1):
                        raise NewConnectionError(connection, "connections are closed before a request is made")
        except OSError as error:
            raise NewConnectionError(connection, f"TLS: {error}") from error
        finally:
            connection.close()

    def guard_behind_proxy(self) -> None:
        """Raise `PrivateAddressError` if the endpoint is not public: a proxy must not be asked to reach it either."""
        if not self._guarded or self._proxy is None:
            return
        host = self._endpoint.host or ""
        try:
            public_addresses(host, self._endpoint.port or _PORTS[self._endpoint.scheme or "http"])
        except OSError as error:
            raise PrivateAddressError(
                f"{host} does not resolve here and so cannot be checked; allow_private=on leaves that to the proxy"
            ) from error

    def close(self) -> None:
        """Close every idle connection; those in use are closed when they are returned."""
        self.pool.close()


def http_pool(
    endpoint: str, make_context: Callable[[], ssl.SSLContext], *, guarded: bool, connections: int
) -> HttpPool:
    """Return connections to `endpoint`, through the proxy in HTTP_PROXY, HTTPS_PROXY and NO_PROXY (as MinIO: §4.2).

    `guarded` refuses to connect if a resolved address is not public. With a proxy, the endpoint's name is resolved and
    checked once per call; the proxy must protect itself against a name whose address changes in between.
    `make_context` is called only if a connection begins with TLS: the system's authorities take 30 ms to read.
    """
    url = parse_url(endpoint)
    scheme, host = url.scheme or "", url.host or ""
    if scheme not in _PORTS or not host:
        raise TargetUnavailable("endpoint: has to be an http or https URL with a host")
    port = url.port or _PORTS[scheme]
    where = f"{scheme}://{host}:{port}"  # the path and the query may hold a secret
    proxy = proxy_for(scheme, host, port)
    secure = scheme == "https" or (proxy is not None and proxy.scheme == "https")
    context = make_context() if secure else None
    pool: StrictPool
    if proxy is not None:
        through = ProxyManager(
            proxy.url,
            maxsize=connections,
            block=False,
            ssl_context=context,
            proxy_ssl_context=context,
            proxy_headers={"Proxy-Authorization": basic_auth(proxy.auth)} if proxy.auth else None,
        )
        through.pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}
        pool = cast(StrictPool, through.connection_from_host(host, port, scheme))
    elif scheme == "https":
        pool = _SecurePool(host, port, maxsize=connections, block=False, ssl_context=context, guarded=guarded)
    else:
        pool = _PlainPool(host, port, maxsize=connections, block=False, guarded=guarded)
    forwarded = proxy is not None and scheme == "http"
    whole = url._replace(auth=None, port=None if port == _PORTS[scheme] else port, fragment=None).url
    target = whole if forwarded else url.request_uri
    return HttpPool(pool, target, where, url, proxy, context, guarded)


@dataclass(frozen=True, slots=True)
class _GuardedEndpoint(Endpoint):
    """An endpoint to whose public addresses alone a connection is made."""

    def resolve(self) -> list[str]:
        """Return the addresses of the host. Raises `OSError`, or `PrivateAddressError` if one is not public."""
        return public_addresses(*self.address)


def http_endpoint(url: str, context: Callable[[], ssl.SSLContext], *, guarded: bool) -> Endpoint:
    """Return the address that `http_pool` connects to. Raises `TargetUnavailable` for an unusable proxy."""
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    if proxy := proxy_for(parts.scheme, host, port):
        return Endpoint(HostPort(proxy.host or "", proxy.port or _PORTS[proxy.scheme or "http"]))
    kind = _GuardedEndpoint if guarded else Endpoint
    return kind(HostPort(host, port), context if parts.scheme == "https" else None)


def proxy_for(scheme: str, host: str, port: int) -> Url | None:
    """Return the proxy that the environment names for this endpoint. Raises `TargetUnavailable` for an unusable one."""
    url = urllib.request.getproxies().get(scheme)
    # Never for this machine, as in Go, hence in MinIO.
    if not url or is_loopback(host) or urllib.request.proxy_bypass(f"{host}:{port}"):
        return None
    proxy = parse_url(url if "://" in url else f"http://{url}")
    if proxy.scheme not in _PORTS or not proxy.host:
        raise TargetUnavailable(f"{scheme.upper()}_PROXY: only http and https proxies can be used")
    return proxy
