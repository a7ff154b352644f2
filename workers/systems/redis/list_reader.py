"""A list: what is at its head is read there, and removed after the commit of its events.

A list gives its elements no number, so what they contain says where they are. Whoever reads or removes names digests of
the elements that it expects at the head, and a script compares them first. So a worker that goes on after it has lost
its lease removes nothing but what it has recorded; and one before whom something was removed notices it, and begins at
the head again. An element that is there twice is one event, because its id is a digest of the record.
"""

import hashlib
from collections.abc import Mapping, Sequence

import redis

from app.config.sources.redis import RedisSourceSettings
from app.events.parsing import Message
from workers.sources.base import Opened, SourceChanged
from workers.systems.redis.reader import Portion, ask

# KEYS: the list; ARGV: the SHA-1 digests in hexadecimal of the elements that have to be at its head, one after the
# other, and how many elements to read after them. It returns nil if others are there.
_COMPARE = """
local known = #ARGV[1] / 40
if known > 0 then
  local head = redis.call('LRANGE', KEYS[1], 0, known - 1)
  if #head < known then return false end
  for i = 1, known do
    if redis.sha1hex(head[i]) ~= string.sub(ARGV[1], 40 * i - 39, 40 * i) then return false end
  end
end
"""
_READ = _COMPARE + "return redis.call('LRANGE', KEYS[1], known, known + ARGV[2] - 1)"
_REMOVE = _COMPARE + "redis.call('LTRIM', KEYS[1], known, -1) return known"


class ListReader:
    """One list. `_ahead` has the digests of the elements at its head that are pulled already."""

    kind = "list"

    def __init__(self, settings: RedisSourceSettings) -> None:
        self._key = settings.key
        self._ahead: list[str] = []
        self._opened = 0
        self._portion = Portion()

    def open(self, client: redis.Redis, positions: Mapping[str, str]) -> Opened:  # noqa: ARG002 - the list knows
        """Begin at the head."""
        self._ahead.clear()
        self._opened += 1
        return Opened()

    def pull(self, client: redis.Redis, most: int, seconds: float) -> Sequence[Message]:
        """Return the next elements; wait for the first one only if nothing is pulled that has to be removed."""
        is_first = not self._portion.is_learned
        messages = self._take(client, most)
        if not messages and not self._ahead:
            ask(client, "BLMOVE", self._key, self._key, "LEFT", "LEFT", seconds)  # waits; the element stays
            messages = self._take(client, most)
        if is_first and messages and (more := min(most, self._portion.count) - len(messages)) > 0:
            messages += self._take(client, more)
        return messages

    def commit(self, client: redis.Redis, messages: Sequence[Message]) -> None:
        """Remove the messages; not those that were pulled before the list was opened again, which come again."""
        tags: list[tuple[int, str]] = [message.tag for message in messages]  # type: ignore[misc]  # `pull` made them
        digests = [digest for opened, digest in tags if opened == self._opened]
        if not digests:
            return
        if ask(client, "EVAL", _REMOVE, 1, self._key, "".join(digests)) is None:
            raise SourceChanged
        del self._ahead[: len(digests)]

    def lag(self, client: redis.Redis) -> int:
        """Return the length of the list, with what is pulled and not removed yet."""
        return int(ask(client, "LLEN", self._key))

    def _take(self, client: redis.Redis, most: int) -> list[Message]:
        """Read the next elements, and learn from their sizes how many to ask for."""
        count = min(most, self._portion.count)
        elements: Sequence[bytes] | None = ask(client, "EVAL", _READ, 1, self._key, "".join(self._ahead), count)
        if elements is None:
            raise SourceChanged
        digests = [hashlib.sha1(element, usedforsecurity=False).hexdigest() for element in elements]
        self._ahead += digests
        messages = [Message(body, tag=(self._opened, digest)) for body, digest in zip(elements, digests, strict=True)]
        self._portion.learn(messages)
        return messages
