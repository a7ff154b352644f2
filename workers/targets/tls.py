"""Create TLS contexts from a target's settings; detect changes of files, and note until when certificates are valid.

A context notes them with each handshake: those of the servers that are really connected to, whatever the protocol and
the driver.
"""

import contextlib
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from app.config import tls
from app.config.targets.base import TlsFiles
from app.config.tls import Validity
from workers.targets.base import TargetUnavailable


def context(
    settings: object,
    ca: str = "",
    *,
    skip_verify: bool = False,
    client_cert: str = "",
    client_key: str = "",
    names: tuple[str, str, str] = tls.NAMES,
) -> ssl.SSLContext:
    """Return `app.config.tls.context`, but raise `TargetUnavailable` for an unusable file.

    Such a file can be repaired without a restart. Until when the certificates of its connections, of the client and of
    the authority are valid is noted as seen with the settings.
    """
    try:
        made = tls.context(ca, skip_verify=skip_verify, client_cert=client_cert, client_key=client_key, names=names)
    except tls.BadFile as bad:
        raise TargetUnavailable(str(bad)) from bad
    seen = seen_with(settings)
    watch(made, seen)
    # Replaced in this moment, or of a form that only OpenSSL reads; the library's errors are of several classes.
    with contextlib.suppress(Exception):
        if client_cert:
            seen.note(names[1], tls.validities_of_file(client_cert)[0])
        if ca:  # of several authorities one may be a former one
            seen.note(names[0], max(tls.validities_of_file(ca), key=attrgetter("ends_at")))
    return made


def context_of(settings: TlsFiles) -> ssl.SSLContext:
    """Return the context that a target's settings define. Raises `TargetUnavailable` for an unusable file."""
    ca, cert, key = tls.NAMES
    return context(
        settings,
        settings.tls_file(ca),
        skip_verify=settings.tls_skip_verify,
        client_cert=settings.tls_file(cert),
        client_key=settings.tls_file(key),
        names=(settings.tls_file_name(ca), settings.tls_file_name(cert), settings.tls_file_name(key)),
    )


def context_maker(settings: TlsFiles) -> Callable[[], ssl.SSLContext] | None:
    """Return a function that returns `context_of`, or None for a connection without TLS."""
    return partial(context_of, settings) if settings.uses_tls else None


def stamp_of(settings: TlsFiles) -> object:
    """Return the `stamp` of a target's certificate files."""
    return stamp(*map(settings.tls_file, tls.NAMES))


def stamp(*files: str) -> tuple[tuple[int, int] | None, ...]:
    """Return a value that changes when a file does; client certificates are renewed in place (as MinIO: §4.2)."""
    return tuple(_state(Path(file)) if file else None for file in files)


def _state(file: Path) -> tuple[int, int] | None:
    try:
        seen = file.stat()
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_ino


_AHEAD_SECONDS = 30 * 86_400  # before the end of a certificate, after which it is looked at again
_AHEAD_SHARE = 3  # or in the last third of its life: authorities renew after two thirds
_AGAIN_SECONDS = 86_400.0  # between two such looks
_AGAIN_SHARE = 24  # or this share of its life
_LEAST_SECONDS = 60.0  # between two looks in any case
_RECORDED_SHARE = 2  # of the time between two looks, after which one that is met again is recorded again


class SeenCertificates:
    """When certificates are valid that were seen, by names of servers or settings. Thread-safe."""

    def __init__(self) -> None:
        self._valid: dict[str, Validity] = {}
        self._unrecorded: dict[str, Validity] = {}
        self._recorded: dict[str, tuple[Validity, float]] = {}  # and when, by time.monotonic()
        self._looked_at = 0.0  # of the last handshake or such look, by time.monotonic()
        self._lock = threading.Lock()

    def note(self, name: str, valid: Validity) -> None:
        """Note a certificate, and when it is valid."""
        now = time.monotonic()
        with self._lock:
            self._valid[name] = valid
            self._looked_at = now
            recorded, at = self._recorded.get(name, (None, 0.0))
            if recorded != valid or now >= at + _again(valid) / _RECORDED_SHARE:
                self._unrecorded[name] = valid
            else:
                self._unrecorded.pop(name, None)

    def unrecorded(self) -> Mapping[str, Validity]:
        """Return what differs from what was last passed to `recorded`, or was noted again half a day later.

        The rest is not returned, because another process may have met a newer certificate of the same name meanwhile.
        """
        if not self._unrecorded:  # without the lock: this is asked for each batch
            return {}
        with self._lock:
            return dict(self._unrecorded)

    def recorded(self, valid: Mapping[str, Validity]) -> None:
        """Note that this is recorded, beside what was recorded before."""
        with self._lock:
            for name, one in valid.items():
                self._recorded[name] = one, time.monotonic()
                if self._unrecorded.get(name) == one:
                    del self._unrecorded[name]

    def forget(self) -> None:
        """Forget what was seen."""
        with self._lock:
            self._valid, self._unrecorded, self._recorded = {}, {}, {}

    def is_stale(self) -> bool:
        """Return whether one ends soon and may have been renewed since: only a new connection would show that.

        It is so once a day, for a short life more often, also if that connection shows nothing.
        """
        since, now = time.monotonic() - self._looked_at, time.time()
        if not any(
            since >= _again(one) and now > one.ends_at / 1000 - _ahead(one) for one in self._valid.copy().values()
        ):
            return False
        self._looked_at = time.monotonic()
        return True


def _again(valid: Validity) -> float:
    return min(_AGAIN_SECONDS, max(_LEAST_SECONDS, _life(valid) / _AGAIN_SHARE))


def _ahead(valid: Validity) -> float:
    return min(_AHEAD_SECONDS, _life(valid) / _AHEAD_SHARE)


def _life(valid: Validity) -> float:
    return (valid.ends_at - valid.begins_at) / 1000


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
        seen.note(connection.server_hostname or "server", tls.validity_of(connection.getpeercert(binary_form=True)))
