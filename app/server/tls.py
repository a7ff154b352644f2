"""Load the API's certificate from its files, and reload it when they are replaced."""

import logging
import ssl
import threading
from pathlib import Path

from app.config.errors import BadSettings, Problem

log = logging.getLogger("bucketwire.tls")

_Stamp = tuple[tuple[int, int], ...]


class Certificate:
    """The certificate of the API, for TLS 1.2 or later. Raises `BadSettings` if its files are unusable.

    A renewed certificate is used from the next connection on. While its files are unusable the previous one is used.
    """

    def __init__(self, cert: str, key: str) -> None:
        self._cert, self._key = cert, key
        self._lock = threading.Lock()
        self._stamp = self._read_stamp()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection. May be called from any thread."""
        with self._lock:
            stamp = self._read_stamp()
            if stamp != self._stamp:
                try:
                    self._context = self._load()
                    log.info("the TLS certificate was reloaded")
                except BadSettings as error:
                    log.warning("the new TLS certificate is unusable, the previous one stays in use: %s", error)
                self._stamp = stamp
            return self._context

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # For an encrypted key OpenSSL would prompt on the terminal; with the empty password it fails instead.
            context.load_cert_chain(self._cert, self._key, password="")
        except (OSError, ssl.SSLError) as error:
            reason = f"cannot be used with the key {self._key}: {error.strerror or error}"
            hint = "both must be PEM: the chain, the server's certificate first, and its key, without a password"
            raise BadSettings([Problem("BUCKETWIRE_TLS_CERT", self._cert, reason, hint)]) from None
        return context

    def _read_stamp(self) -> _Stamp:
        stamps = []
        for path in (self._cert, self._key):
            try:
                status = Path(path).stat()
            except OSError:
                stamps.append((0, 0))
            else:
                stamps.append((status.st_mtime_ns, status.st_ino))
        return tuple(stamps)
