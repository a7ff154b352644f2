"""Streams over TLS. Asyncio takes no socket that is secured already, so it gets one end of a pair: a thread carries."""

import contextlib
import select
import socket
import ssl
import threading

_CHUNK = 64 * 1024


def decrypt(secure: ssl.SSLSocket, room: int) -> socket.socket:
    """A socket whose bytes leave through `secure`, with `room` bytes on their way; it ends when `secure` does.

    What comes in is read and dropped: a stream's client has nothing more to say. Costs a thread for each stream.
    """
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
    threading.Thread(target=_carry, args=(secure, far), name="listen-tls", daemon=True).start()
    return near


def _carry(secure: ssl.SSLSocket, far: socket.socket) -> None:
    with secure, far, contextlib.suppress(OSError):  # TLS errors are kinds of it; whoever it was has gone
        secure.setblocking(False)
        both = select.poll()
        both.register(secure, select.POLLIN)
        both.register(far, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in both.poll()}
            if secure.fileno() in ready and not _drop(secure):
                return
            if far.fileno() in ready:
                content = far.recv(_CHUNK)
                if not content:
                    secure.unwrap()
                    return
                _send(secure, far, content)


def _drop(secure: ssl.SSLSocket) -> bool:
    """Whether the client is still there."""
    try:
        while secure.recv(_CHUNK):
            pass
    except ssl.SSLWantReadError:
        return True
    return False


def _send(secure: ssl.SSLSocket, far: socket.socket, content: bytes) -> None:
    """Send all of it, or raise OSError when the other end of the pair is closed before the client took it."""
    rest = memoryview(content)
    while rest:
        wanted = select.POLLOUT
        try:
            rest = rest[secure.send(rest) :]
            continue
        except ssl.SSLWantReadError:
            wanted = select.POLLIN
        except ssl.SSLWantWriteError:
            pass
        either = select.poll()
        either.register(secure, wanted)
        either.register(far, 0)  # tells of its end only
        if far.fileno() in {descriptor for descriptor, _ in either.poll()}:
            raise ConnectionAbortedError
