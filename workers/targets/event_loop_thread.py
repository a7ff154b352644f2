"""Run an event loop in a background thread, for a driver that is written for asyncio.

It needs a thread because such a driver answers its server between two calls (NATS's PING, a heartbeat) only while its
loop runs; the server closes a connection that does not answer.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from workers.targets import tcp

T = TypeVar("T")

_JOIN_SECONDS = 5.0  # a pending name resolution keeps the thread alive for longer, and the thread then ends by itself
_NEXT_ADDRESS_SECONDS = 0.25  # after which the next address of a name is tried too (RFC 8305)


class EventLoopThread:
    """A running loop. `close` closes all connections made in it, including those that their driver forgot."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self._loop = _Loop()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether it runs in this process. A forked child has the object but not the thread."""
        return os.getpid() == self._process

    @property
    def is_encrypted(self) -> bool:
        """Whether the most recent connection uses TLS."""
        made = self._loop.connections
        return bool(made) and made[-1].get_extra_info("ssl_object") is not None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result, or raise its exception. An interruption of the caller cancels it."""
        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def close(self) -> None:
        """Close every connection and end the thread. May be called any number of times; no effect in a forked child."""
        if not self.is_here or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_SECONDS)

    def _live(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._end())
        finally:
            self._loop.close()

    async def _end(self) -> None:
        for connection in self._loop.connections:
            connection.abort()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # an aborted connection closes its socket in the loop's next iteration
        await self._loop.shutdown_default_executor()


class _Loop(asyncio.SelectorEventLoop):
    """Keeps track of its connections: nats-py leaves one open when the login fails, and waits for frozen servers."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[asyncio.Transport] = []
        self._places: list[tcp.Place] = []

    async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
        entries = tcp.ordered(await super().getaddrinfo(*args, **options))
        self._places = tcp.places(entries)
        return entries

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        # An address that answers nothing leaves time for the others of the name.
        options.setdefault("happy_eyeballs_delay", _NEXT_ADDRESS_SECONDS)
        transport, protocol = await super().create_connection(*args, **options)
        self.connections.append(transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        tcp.made(transport.get_extra_info("socket").fileno(), (host, port), self._places)
        return transport, protocol

    async def start_tls(self, *args: Any, **options: Any) -> Any:
        transport = await super().start_tls(*args, **options)
        if transport is not None:
            self.connections.append(transport)
        return transport
