"""Read what targets need of urllib3's errors and answers, and write down a request or an answer."""

import re
from collections.abc import Mapping

from urllib3.exceptions import HTTPError, InvalidHeader
from urllib3.util import Retry

from workers.delivery.outcomes import HttpMessage

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
