"""Limit how long an answer of the task broker may take, if that is a Redis: redis-py's own limit is that of one read.

A Redis that sends a byte a second would hold a worker's loop, and each request that waits for the broker.
"""

from typing import Any

from app import socket_watchdog

_GRACE_SECONDS = 1.0  # beyond the limit of a read: its error says that nothing came, and not that Redis has closed


class _Limited:
    """A connection whose answers take little longer as a whole than a read may, `socket_timeout`."""

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Read an answer. Raises the connection's errors."""
        wire, seconds = self._sock, self.socket_timeout  # type: ignore[attr-defined]  # of the connection
        if wire is None or not seconds:
            return super().read_response(*arguments, **options)  # type: ignore[misc]  # which it is mixed into
        answer = socket_watchdog.LimitedSocket(wire, seconds + _GRACE_SECONDS)
        socket_watchdog.add(answer)
        try:
            return super().read_response(*arguments, **options)  # type: ignore[misc]  # as above
        finally:
            socket_watchdog.remove(answer)


def limited(connection: type[Any]) -> type[Any]:
    """Return a class of such connections with limited answers."""
    return connection if issubclass(connection, _Limited) else type(connection.__name__, (_Limited, connection), {})


def limit_answers(channel: Any) -> None:
    """Have the connections be limited that this class of kombu's channels makes from now on in this process."""
    if channel in _CHANNELS:
        return
    _CHANNELS.add(channel)
    usual: Any = channel._connparams  # kombu has no other place for the class of a socket file

    def parameters(self: Any, asynchronous: bool = False) -> dict[str, Any]:
        chosen: dict[str, Any] = usual(self, asynchronous)
        return chosen | {"connection_class": limited(chosen["connection_class"])}

    channel._connparams = parameters


_CHANNELS = set[type]()  # whose connections are limited
