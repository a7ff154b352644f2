"""Read what targets need of urllib3's errors and answers."""

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError, InvalidHeader
from urllib3.util import Retry


def describe_http_error(error: HTTPError) -> str:
    """Return the error as text, without urllib3's object names."""
    text = str(error.args[-1] if error.args else error) or type(error).__name__
    return text.rpartition(": Failed to establish a new connection: ")[2] or text


def retry_after(response: BaseHTTPResponse) -> float | None:
    """Return the answer's Retry-After in seconds; None if it has none, or an invalid one."""
    try:
        return Retry().get_retry_after(response)
    except InvalidHeader:
        return None
