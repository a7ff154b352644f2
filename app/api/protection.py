"""Headers that every answer of the API has, so that no browser takes it for something else, or for another site's."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# No guess at the kind of the content, and no page of another origin may embed an answer.
PROTECTION: Mapping[str, str] = MappingProxyType(
    {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}
)
_HEADERS = tuple(PROTECTION.items())


def protecting(start_response: Any) -> Any:
    """Return a WSGI server's `start_response` that adds these headers, unless an application has added them."""

    def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
        added = [header for header in _HEADERS if header not in headers]
        return start_response(status, headers + added, *error)

    return start
