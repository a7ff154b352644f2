"""The API's own certificate: taken from its files, and again when they are replaced."""

import logging
import ssl
import threading
from pathlib import Path

from app.config.errors import BadSettings, Problem

log = logging.getLogger("bucketwire.tls")

_Stamp = tuple[tuple[int, int], ...]


class Certificate:
    """What connections are served with: TLS 1.2 or later. Raises `BadSettings` where its files cannot be used.

    A renewed certificate holds from the next connection on. While its files cannot be used the one before goes on.
    """

    def __init__(self, cert: str, key: str) -> None:
        self._cert, self._key = cert, key
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """The context for a new connection. From any thread."""
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp:
                try:
                    self._context = self._load()
                    log.info("the certificate was renewed")
                except BadSettings as error:
                    log.warning("the certificate before goes on: %s", error)
                self._stamp = stamp
            return self._context

    def _load(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # An encrypted key would make OpenSSL ask at the terminal; the empty password makes it fail instead.
            made.load_cert_chain(self._cert, self._key, password="")
        except (OSError, ssl.SSLError) as error:
            reason = f"cannot be used with the key {self._key}: {error.strerror or error}"
            hint = "both are PEM, the chain with the server's own first and a key without password, and belong together"
            raise BadSettings([Problem("BUCKETWIRE_TLS_CERT", self._cert, reason, hint)]) from None
        return made

    def _look(self) -> _Stamp:
        found = []
        for path in (self._cert, self._key):
            try:
                seen = Path(path).stat()
            except OSError:
                found.append((0, 0))
            else:
                found.append((seen.st_mtime_ns, seen.st_ino))
        return tuple(found)
