"""Note until when the certificates are valid that the connections of a target or source meet and use.

A TLS context notes them with each handshake: those of the servers that are really connected to, whatever the protocol
and the driver.
"""

import contextlib
import ssl
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from app.config import tls

_AHEAD_SECONDS = 30 * 86_400  # before the end of a certificate, after which it is looked at again
_AGAIN_SECONDS = 86_400.0  # between two such looks
_RECORDED_SECONDS = 43_200.0  # after which one that is met again is recorded again: less than between two looks


class SeenCertificates:
    """The ends of certificates that were seen (ms since 1970), by names of servers or settings. Thread-safe."""

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}
        self._unrecorded: dict[str, int] = {}
        self._recorded: dict[str, tuple[int, float]] = {}  # and when, by time.monotonic()
        self._looked_at = 0.0  # of the last handshake or such look, by time.monotonic()
        self._lock = threading.Lock()

    def note(self, name: str, ends_at: float) -> None:
        """Note a certificate that ends at a time in seconds since 1970."""
        end, now = int(ends_at * 1000), time.monotonic()
        with self._lock:
            self._ends[name] = end
            self._looked_at = now
            recorded, at = self._recorded.get(name, (None, 0.0))
            if recorded != end or now >= at + _RECORDED_SECONDS:
                self._unrecorded[name] = end
            else:
                self._unrecorded.pop(name, None)

    def unrecorded(self) -> Mapping[str, int]:
        """Return the ends that differ from those last passed to `recorded`, or were noted again half a day later.

        Others are not returned, because another process may have recorded a newer end of the same name meanwhile.
        """
        if not self._unrecorded:  # without the lock: this is asked for each batch
            return {}
        with self._lock:
            return dict(self._unrecorded)

    def recorded(self, ends: Mapping[str, int]) -> None:
        """Note that this is recorded, beside what was recorded before."""
        with self._lock:
            for name, end in ends.items():
                self._recorded[name] = end, time.monotonic()
                if self._unrecorded.get(name) == end:
                    del self._unrecorded[name]

    def forget(self) -> None:
        """Forget what was seen."""
        with self._lock:
            self._ends, self._unrecorded, self._recorded = {}, {}, {}

    def is_stale(self) -> bool:
        """Return whether one ends soon and may have been renewed since: only a new connection would show that.

        It is so once a day, also if that connection shows nothing.
        """
        if not self._ends or time.monotonic() - self._looked_at < _AGAIN_SECONDS:
            return False
        if min(self._ends.values()) / 1000 >= time.time() + _AHEAD_SECONDS:
            return False
        self._looked_at = time.monotonic()
        return True


# By the id of the settings, which need not be hashable; an entry goes with them.
_of_settings: dict[int, SeenCertificates] = {}
_of_contexts: weakref.WeakKeyDictionary[ssl.SSLContext, SeenCertificates] = weakref.WeakKeyDictionary()


def seen_with(settings: object) -> SeenCertificates:
    """Return what connections with these settings have seen: the very same object, not one that is equal to it."""
    found = _of_settings.get(id(settings))
    if found is None:
        found = _of_settings[id(settings)] = SeenCertificates()
        weakref.finalize(settings, _of_settings.pop, id(settings), None)
    return found


def watch(context: ssl.SSLContext, seen: SeenCertificates) -> None:
    """Have each handshake with the context note the server's certificate, if that is verified."""
    context.sslsocket_class, context.sslobject_class = _WatchedSocket, _WatchedObject
    _of_contexts[context] = seen


class _WatchedSocket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        _note(self)


class _WatchedObject(ssl.SSLObject):
    def do_handshake(self) -> None:
        super().do_handshake()
        _note(self)


def _note(connection: Any) -> None:
    seen = _of_contexts.get(connection.context)
    if seen is None or connection.context.verify_mode == ssl.CERT_NONE:
        return
    # Whatever cannot be read of a certificate that OpenSSL accepts stays unknown: the connection itself works. What
    # Python decodes of it is not asked for, since that fails for text that is not UTF-8.
    with contextlib.suppress(Exception):
        seen.note(connection.server_hostname or "server", tls.end_of(connection.getpeercert(binary_form=True)))
