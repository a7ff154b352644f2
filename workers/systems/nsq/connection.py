"""One connection to nsqd: V2 of its protocol over a blocking socket, limited to what a producer needs."""

import contextlib
import importlib.metadata
import os
import select
import socket
import ssl
import struct
from collections.abc import Sequence
from typing import Any

import orjson

from app.config.targets.nsq import NsqSettings
from workers.targets import tcp, tls
from workers.targets.base import TargetUnavailable
from workers.targets.sockets import AnswerTooLong, Deadline

USER_AGENT = f"Bucketwire/{importlib.metadata.version('bucketwire')}"

_MAX_FRAME_BYTES = 1 << 20  # of an answer: OK, an error, or what nsqd says of itself
_ANSWER, _ERROR = 0, 1  # types of a frame


class RefusedError(Exception):
    """nsqd answered with an error, and has closed the connection."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class LostError(Exception):
    """The connection ended without an answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NsqConnection:
    """A connection that is open, identified and, if the settings ask for it, encrypted."""

    def __init__(self, settings: NsqSettings) -> None:
        """Connect. Raises `TargetUnavailable`."""
        self._settings = settings
        self._where = f"NSQ at {settings.nsqd_address}"
        self._topic = settings.topic.encode()
        self._process = os.getpid()
        context = tls.context_of(settings) if settings.tls else None
        try:
            self._socket: socket.socket = tcp.connect(*settings.nsqd_address, settings.timeout)
        except OSError as error:
            raise TargetUnavailable(f"{self._where}: {self._describe_error(error)}") from error
        try:
            self._begin(context)
        except (RefusedError, LostError) as error:
            self.close()
            raise TargetUnavailable(error.reason) from error
        except OSError as error:
            self.close()
            raise TargetUnavailable(f"{self._where}: {self._describe_error(error)}") from error
        except BaseException:
            self.close()
            raise

    @property
    def is_stale(self) -> bool:
        """Return whether it is unusable: closed by nsqd, which sends nothing unrequested, or opened before a fork."""
        if os.getpid() != self._process:
            return True
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        poll = select.poll()  # select() takes no descriptor beyond 1,023
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def publish(self, bodies: Sequence[bytes]) -> None:
        """Return when nsqd has accepted all of these messages, in order.

        Raises `RefusedError`, `LostError`, or `TargetUnavailable` if it does not answer in time. After any of them the
        connection is unusable.
        """
        content = b"".join([struct.pack(">l", len(bodies)), *map(_sized, bodies)])
        answer = self._exchange(b"MPUB " + self._topic + b"\n" + _sized(content))
        if answer != b"OK":
            raise TargetUnavailable(f"{self._where}: the answer to MPUB is {answer[:80]!r}, not OK")

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _begin(self, context: ssl.SSLContext | None) -> None:
        host = socket.gethostname()
        identity = {
            "client_id": host.partition(".")[0],
            "hostname": host,
            "user_agent": USER_AGENT,
            "feature_negotiation": True,
            "tls_v1": context is not None,
            # Nothing would answer heartbeats between two calls, and nsqd detects a lost peer by TCP's keep-alive.
            "heartbeat_interval": -1,
        }
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        answer = self._exchange(b"  V2IDENTIFY\n" + _sized(orjson.dumps(identity)))
        agreed = self._agreed(answer)
        if context is not None:
            if not agreed.get("tls_v1"):
                raise TargetUnavailable(f"{self._where}: nsqd offers no TLS; it needs -tls-cert and -tls-key")
            self._socket = context.wrap_socket(self._socket, server_hostname=self._settings.nsqd_address.host)
            self._exchange(b"")
        if agreed.get("auth_required"):
            raise TargetUnavailable(f"{self._where}: nsqd asks for AUTH, which this target does not support")

    def _agreed(self, answer: bytes) -> dict[str, Any]:
        """Return what nsqd has agreed to; an old one answers OK, which agrees to nothing."""
        if answer == b"OK":
            return {}
        with contextlib.suppress(ValueError):
            if isinstance(agreed := orjson.loads(answer), dict):
                return agreed
        raise TargetUnavailable(f"{self._where}: the answer to IDENTIFY is {answer[:80]!r}, not that of nsqd")

    def _exchange(self, request: bytes) -> bytes:
        with Deadline(self._settings.timeout, self._socket.fileno()) as limit:
            try:
                # An answer that arrived before the connection broke has more information than the broken connection.
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    self._socket.sendall(request)
                return self._answer()
            except LostError as error:
                if limit.expired:
                    raise TargetUnavailable(f"{self._where}: {self._describe_error(TimeoutError())}") from error
                raise
            except OSError as error:
                if limit.expired or isinstance(error, TimeoutError):
                    late = error if isinstance(error, TimeoutError) else TimeoutError()
                    raise TargetUnavailable(f"{self._where}: {self._describe_error(late)}") from error
                raise LostError(f"{self._where}: {self._describe_error(error)}") from error

    def _answer(self) -> bytes:
        size, kind = struct.unpack(">ll", self._exactly(8))
        if not 4 <= size <= _MAX_FRAME_BYTES:
            raise TargetUnavailable(f"{self._where}: {AnswerTooLong(_MAX_FRAME_BYTES, size)}")
        content = self._exactly(size - 4)
        if kind == _ERROR:
            words = content.decode(errors="replace")
            raise RefusedError(words.partition(" ")[0], f"{self._where}: {words}")
        if kind != _ANSWER:
            raise TargetUnavailable(f"{self._where}: nsqd sent a frame of type {kind}, which is no answer")
        return content

    def _exactly(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            part = self._socket.recv(size - len(content))
            if not part:
                raise LostError(f"{self._where}: nsqd closed the connection")
            content += part
        return bytes(content)

    def _describe_error(self, error: OSError) -> str:
        if isinstance(error, TimeoutError) and not error.errno:
            return f"no answer within {self._settings.timeout:g} s"
        return error.strerror or str(error)


def _sized(content: bytes) -> bytes:
    return struct.pack(">l", len(content)) + content
