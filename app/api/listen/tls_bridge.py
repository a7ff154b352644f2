"""Bridge streams over TLS. Asyncio accepts no TLS socket, so it gets one end of a socket pair and a thread copies."""

import contextlib
import select
import socket
import ssl
import threading

_CHUNK = 64 * 1024


def decrypt(secure: ssl.SSLSocket, buffer_size: int) -> socket.socket:
    """Return a plain socket whose bytes are sent through `secure`; it is closed when `secure` is.

    At most `buffer_size` bytes are buffered. Received bytes are dropped: a stream's client sends nothing more. This
    takes one thread for each stream.
    """
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_size)
    threading.Thread(target=_copy, args=(secure, far), name="listen-tls", daemon=True).start()
    return near


def _copy(secure: ssl.SSLSocket, far: socket.socket) -> None:
    with secure, far, contextlib.suppress(OSError):  # TLS errors are OSErrors; the client has disconnected
        secure.setblocking(False)
        both = select.poll()
        both.register(secure, select.POLLIN)
        both.register(far, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in both.poll()}
            if secure.fileno() in ready and not _discard_input(secure):
                return
            if far.fileno() in ready:
                content = far.recv(_CHUNK)
                if not content:
                    secure.unwrap()
                    return
                _send(secure, far, content)


def _discard_input(secure: ssl.SSLSocket) -> bool:
    """Discard received bytes; return whether the client is still connected."""
    try:
        while secure.recv(_CHUNK):
            pass
    except ssl.SSLWantReadError:
        return True
    return False


def _send(secure: ssl.SSLSocket, far: socket.socket, content: bytes) -> None:
    """Send all of it, or raise OSError if the other end of the pair is closed before that."""
    rest = memoryview(content)
    while rest:
        events = select.POLLOUT
        try:
            rest = rest[secure.send(rest) :]
            continue
        except ssl.SSLWantReadError:
            events = select.POLLIN
        except ssl.SSLWantWriteError:
            pass
        either = select.poll()
        either.register(secure, events)
        either.register(far, 0)  # reports only that it was closed
        if far.fileno() in {descriptor for descriptor, _ in either.poll()}:
            raise ConnectionAbortedError
