"""The API of a service elsewhere, over HTTP."""

from typing import Any
from urllib.parse import quote

import orjson

from app.api import Refused
from app.cli_common import CommandError
from app.cli_common.api_session import ApiSession, ApiUnavailable, InvalidToken, InvalidUrl


class HttpApi:
    """The API at a URL. Raises `CommandError` for a URL or a token that cannot be one, and if the API is away."""

    def __init__(self, url: str, token: str) -> None:
        try:
            self._session = ApiSession(url, token)
        except (InvalidToken, InvalidUrl) as error:
            raise CommandError(str(error)) from None

    def call(self, method: str, path: str, query: str, body: bytes | None) -> dict[str, Any]:
        """Call a route and return its JSON. Raises `Refused`, or `CommandError` if no Bucketwire API answers."""
        headers = {} if body is None else {"Content-Type": "application/json"}
        address = quote(path, safe="/") + (f"?{query}" if query else "")
        try:
            response = self._session.request(method, address, data=body, headers=headers)
        except ApiUnavailable as error:
            raise CommandError(str(error)) from None
        try:
            answer = {} if response.status_code == 204 else orjson.loads(response.content)
            if 200 <= response.status_code < 300:
                return dict(answer)
            raise Refused(response.status_code, {"type": answer["type"], "detail": answer["detail"], **answer})
        except (ValueError, KeyError, TypeError):
            problem = f"{self._session.shown_url} answered {response.status_code} and is not a Bucketwire API"
            raise CommandError(problem) from None

    def close(self) -> None:
        """Close the connection."""
        self._session.close()
