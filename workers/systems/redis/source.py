"""Redis: one list or stream, by one connection to the server that has the key."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import redis
from redis.exceptions import RedisError, ResponseError

from app.config.sources.redis import RedisSourceSettings
from app.events.parsing import Message
from workers.sources.base import Opened, SourceUnavailable
from workers.systems.redis.connection import RedisServers, describe_error, describe_servers
from workers.systems.redis.readers import ListReader, Reader, StreamReader, ask
from workers.targets.base import TargetUnavailable
from workers.targets.sockets import Deadline

_NEEDED = {
    "access": "+type +lrange +ltrim +llen +blmove +eval",
    "stream": "+type +xread +xrange +xinfo|stream, to show the position +xgroup",
}


class RedisSource:
    """One key and one connection."""

    def __init__(self, settings: RedisSourceSettings) -> None:
        self._settings = settings
        self._servers = RedisServers(settings)
        self._client: redis.Redis | None = None
        self._reader: Reader = StreamReader(settings) if settings.format == "stream" else ListReader(settings)

    def open(self, positions: Mapping[str, str]) -> Opened:
        """Connect, check that the key is unused or of the right type, and begin after the positions."""
        self.close()
        with self._asking():
            self._client = client = self._servers.connect()
            client.response_callbacks.clear()  # answers as Redis writes them
            kind = ask(client, "TYPE", self._settings.key).decode()
            if kind in ("none", self._reader.kind):
                return replace(self._reader.open(client, positions), risks=self._find_risks(client))
        self.close()
        raise SourceUnavailable(
            f"{describe_servers(self._settings)}: key {self._settings.key!r} holds a {kind}, but format"
            f" {self._settings.format} needs a {self._reader.kind}; name another key"
        )

    def pull(self, most: int, seconds: float) -> Sequence[Message]:
        """Return the next messages, as the reader does."""
        with self._asking(seconds) as client:
            return self._reader.pull(client, most, seconds)

    def commit(self, messages: Sequence[Message]) -> None:
        """Have what is recorded removed, or shown as taken; nothing without a connection: it comes again then."""
        if self._client is not None:
            with self._asking() as client:
                self._reader.commit(client, messages)

    def lag(self) -> int | None:
        """Return how many messages wait."""
        with self._asking() as client:
            return self._reader.lag(client)

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(RedisError, OSError):
                client.connection_pool.disconnect()

    def _find_risks(self, client: redis.Redis) -> Sequence[str]:
        """Return how Redis may remove the key itself; nothing if the user may not see that."""
        risks = []
        with suppress(ResponseError):
            facts = dict(line.split(":", 1) for line in ask(client, "INFO", "memory").decode().split() if ":" in line)
            policy = facts.get("maxmemory_policy", "")
            if policy.startswith("allkeys") and facts.get("maxmemory") != "0":
                risks.append(
                    f"Redis has maxmemory-policy {policy}, so it removes the key with its messages when it is full; set"
                    " noeviction"
                )
        with suppress(ResponseError):
            if ask(client, "PTTL", self._settings.key) > 0:
                risks.append("the key expires, and its messages with it; execute PERSIST, and let nobody set EXPIRE")
        return risks

    @contextmanager
    def _asking(self, seconds: float = 0.0) -> Iterator[redis.Redis]:
        """Ask within the time limit and so many seconds more. After an error the connection is closed."""
        with Deadline(self._settings.timeout + seconds) as limit:
            try:
                yield self._client  # type: ignore[misc]  # only `open` has none, and does not use it
            except (RedisError, OSError, TargetUnavailable) as error:
                self.close()
                raise SourceUnavailable(self._reason(error, late=limit.expired)) from error

    def _reason(self, error: Exception, *, late: bool) -> str:
        if isinstance(error, TargetUnavailable):
            return error.reason
        reason = f"no answer within {self._settings.timeout:g} s" if late else None
        reason = reason or describe_error(error, _NEEDED[self._settings.format])
        return f"{describe_servers(self._settings)}: {reason}"
