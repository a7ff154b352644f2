"""Create TLS contexts from a target's settings, and detect changes of its files."""

import contextlib
import ssl
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path

from app.config import tls
from app.config.targets.base import TlsFiles
from workers.targets import certificates
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
    seen = certificates.seen_with(settings)
    certificates.watch(made, seen)
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
