"""What the readers of lists and of streams share."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import redis

from app.events.parsing import Message
from workers.sources.base import Opened

_PULLED_BYTES = 1 << 22  # that are asked for at once: Redis does nothing else while it reads them
_FIRST_COUNT, _MAX_COUNT = 3, 10_000  # the first so small that the largest events fit into one answer


class Reader(Protocol):
    """Reads one key by a client that is connected to the server that has it. Everything may raise `RedisError`."""

    kind: str  # of the key, as TYPE says it

    def open(self, client: redis.Redis, positions: Mapping[str, str]) -> Opened:
        """Begin after these positions."""

    def pull(self, client: redis.Redis, most: int, seconds: float) -> Sequence[Message]:
        """Return messages as `Source.pull`. Raises `SourceChanged`."""

    def commit(self, client: redis.Redis, messages: Sequence[Message]) -> None:
        """Take the messages as `Source.commit`. Raises `SourceChanged`."""

    def lag(self, client: redis.Redis) -> int | None:
        """Return how many messages wait."""


class Portion:
    """How many messages to ask for, which is learned from the sizes of those before."""

    def __init__(self) -> None:
        self.count = _FIRST_COUNT
        self.is_learned = False

    def learn(self, messages: Sequence[Message]) -> None:
        """Note the messages of an answer."""
        if messages:
            self.is_learned = True
            mean = sum(len(message.body) for message in messages) // len(messages)
            self.count = max(1, min(_PULLED_BYTES // max(1, mean), _MAX_COUNT))


def ask(client: redis.Redis, *words: Any) -> Any:
    """Execute a command; return its answer as Redis wrote it."""
    return client.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
