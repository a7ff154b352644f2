"""HTTP requests to the service's own API, with a token: what `--url` and the Spark jobs send.

Their answers are read by `app.http_pools`.
"""

import os
import re
from typing import Any
from urllib.parse import urlsplit

import requests
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError
from urllib3.util.ssl_ import create_urllib3_context

from app.config.fields.addresses import redacted_url
from app.config.tls import verify_alike
from app.http_pools import pool_classes, whole


class StrictAdapter(HTTPAdapter):
    """Makes a session's requests. An answer of more than `max_answer_bytes` is a `requests.ConnectionError`."""

    def __init__(self, max_answer_bytes: int) -> None:
        self._max_answer_bytes = max_answer_bytes
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        """Make the connections of requests without a proxy."""
        super().init_poolmanager(*arguments, **options, ssl_context=verify_alike(create_urllib3_context()))
        self.poolmanager.pool_classes_by_scheme = pool_classes(self._max_answer_bytes)

    def proxy_manager_for(self, proxy: str, **options: Any) -> PoolManager:
        """Return the connections of requests through this proxy."""
        options["ssl_context"] = verify_alike(create_urllib3_context())
        connections: PoolManager = super().proxy_manager_for(proxy, **options)
        connections.pool_classes_by_scheme = pool_classes(self._max_answer_bytes)
        return connections

    def send(self, request: PreparedRequest, *arguments: Any, **options: Any) -> Response:
        """Send a request, and read the answer."""
        response = super().send(request, *arguments, **options)
        try:
            response.raw = whole(response.raw, self._max_answer_bytes, is_read=False)
        except HTTPError as error:
            raise requests.ConnectionError(error, request=request) from error
        return response


def read_strictly(session: requests.Session, max_answer_bytes: int) -> None:
    """Have all requests of a session made by a `StrictAdapter`."""
    for scheme in ("http://", "https://"):
        session.mount(scheme, StrictAdapter(max_answer_bytes))


_WHERE = re.compile(r"^HTTPS?Connection(Pool)?\(.*?\): ")  # urllib3 begins its messages so; the URL says it already

_MAX_ANSWER_BYTES = 1 << 28  # a list of everything that the service has


class InvalidUrl(ValueError):
    """The URL is not that of an HTTP server."""


class InvalidToken(ValueError):
    """The token has characters that no token has."""


class ApiUnavailable(Exception):
    """No response arrived: the message says why."""


class ApiSession:
    """Connections to the API at a URL; a closed connection is opened again by the next request.

    Only this token is sent, whatever a netrc file has. A redirect is a response, and is not followed. TLS trusts the
    authorities in `SSL_CERT_FILE`, else those in `REQUESTS_CA_BUNDLE`, else those of certifi. The proxies of the
    environment apply.
    """

    def __init__(
        self, url: str, token: str = "", *, timeout: float = 60, max_answer_bytes: int = _MAX_ANSWER_BYTES
    ) -> None:
        """`timeout` is that of a connect and of each read, in seconds. Raises `InvalidUrl` or `InvalidToken`."""
        if not token.isascii() or any(not char.isprintable() or char == " " for char in token):
            raise InvalidToken("the token is invalid: it contains characters that are not allowed in a token")
        if not _is_http(url):
            raise InvalidUrl(f"{redacted_url(url)!r} is not a valid URL; write http://host:8730")
        self.url = url.rstrip("/")
        self.shown_url = redacted_url(self.url)  # a proxy in front of the API may have a login
        self._token, self._timeout = token, timeout
        self._session = requests.Session()
        read_strictly(self._session, max_answer_bytes)
        self._session.auth = self._authorize
        # Passed with each request: REQUESTS_CA_BUNDLE would replace a session's own value.
        self._verify = os.environ.get("SSL_CERT_FILE") or True

    def request(self, method: str, path: str, **options: Any) -> Response:
        """Send a request and return the response, whatever its status; `options` are those of `requests`.

        Raises `ApiUnavailable`. After a timeout it is unknown whether the request took effect.
        """
        try:
            return self._session.request(
                method, self.url + path, timeout=self._timeout, verify=self._verify, allow_redirects=False, **options
            )
        except (requests.RequestException, HTTPError, UnicodeError) as error:
            raise ApiUnavailable(f"{self.shown_url} does not answer: {_reason(error)}") from None

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _authorize(self, request: PreparedRequest) -> PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def is_success(response: Response) -> bool:
    """Return whether the status is 2xx; `Response.ok` is true for a redirect too."""
    return 200 <= response.status_code < 300


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _reason(error: Exception) -> str:
    """Return the innermost message: an error of requests contains that of urllib3, which contains the reason."""
    inner = error.args[0] if error.args and isinstance(error.args[0], Exception) else error
    reason = _WHERE.sub("", str(getattr(inner, "reason", None) or inner)) or type(error).__name__
    if "issuer certificate" in reason or "self-signed" in reason or "self signed" in reason:
        reason += "; set SSL_CERT_FILE to the file of the authority that signed it"
    return reason
