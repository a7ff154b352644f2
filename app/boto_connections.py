"""Have botocore read answers by `app.http_answers`: to import this module is enough, also after a client is made."""

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

from app.http_pools import StrictConnection, StrictTlsConnection


class _Connection(AWSHTTPConnection, StrictConnection):  # type: ignore[misc]  # botocore ships no types
    """A connection to S3, or to another service of AWS."""


class _TlsConnection(AWSHTTPSConnection, StrictTlsConnection):  # type: ignore[misc]  # as above
    """Like `_Connection`, with TLS."""


AWSHTTPConnectionPool.ConnectionCls = _Connection
AWSHTTPSConnectionPool.ConnectionCls = _TlsConnection
