"""Have botocore read answers by `app.http_answers`: to import this module is enough, also after a client is made.

An answer that is read as a whole has a limit, and declares no entities: of 900 kB these could make gigabytes.
"""

from typing import Any

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
    AWSResponse,
)
from botocore.exceptions import HTTPClientError
from urllib3.exceptions import ProtocolError

from app.http_pools import MAX_ANSWER_BYTES, StrictConnection, StrictTlsConnection, whole


class _Connection(AWSHTTPConnection, StrictConnection):  # type: ignore[misc]  # botocore ships no types
    """A connection to S3, or to another service of AWS."""


class _TlsConnection(AWSHTTPSConnection, StrictTlsConnection):  # type: ignore[misc]  # as above
    """Like `_Connection`, with TLS."""


def _read(answer: Any) -> bytes:
    """Return the body of an answer. Raises `HTTPClientError`."""
    if "content" not in vars(answer):
        try:
            body = whole(answer.raw, MAX_ANSWER_BYTES).data
        except ProtocolError as error:
            raise HTTPClientError(error=error) from error
        # Of an encoding in which it would look otherwise botocore reads nothing.
        if b"<!ENTITY" in body:
            raise HTTPClientError(error="the answer declares entities of XML, which no S3 server does")
        vars(answer)["content"] = body
    content: bytes = vars(answer)["content"]
    return content


AWSHTTPConnectionPool.ConnectionCls = _Connection
AWSHTTPSConnectionPool.ConnectionCls = _TlsConnection
AWSResponse.content = property(_read)
