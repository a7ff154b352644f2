"""Open connections to MySQL and MariaDB without reading the system's certificate authorities for each of them.

Unless the URL has TLS options, the driver uses TLS if the server supports it, and does not verify the certificate. It
still reads all authorities of the system for each connection, which takes 25 ms of processor time.
"""

import ssl
from collections.abc import Mapping
from functools import cache
from typing import Any

from pymysql.connections import Connection as DriverConnection


class Connection(DriverConnection):
    """The driver's connection; those without TLS options share one TLS context."""

    server_version: str  # set by the driver
    _read_timeout: float | None
    _write_timeout: float | None

    @property
    def patience(self) -> float | None:
        """For how many seconds it waits for the server; None: for any time."""
        return self._read_timeout

    @patience.setter
    def patience(self, seconds: float | None) -> None:
        self._read_timeout = self._write_timeout = seconds

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB."""
        return "mariadb" in self.server_version.lower()

    def _create_ssl_ctx(self, sslp: Mapping[str, Any] | ssl.SSLContext) -> ssl.SSLContext:
        if not sslp:
            return _without_verification()
        context: ssl.SSLContext = super()._create_ssl_ctx(sslp)  # type: ignore[misc]  # of the driver, without a type
        return context


@cache
def _without_verification() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
