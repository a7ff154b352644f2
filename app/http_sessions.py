"""Sessions of requests whose answers are read by `app.http_pools`: the command line's, the Spark jobs', OpenID's."""

from typing import Any

import requests
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError
from urllib3.util.ssl_ import create_urllib3_context

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
