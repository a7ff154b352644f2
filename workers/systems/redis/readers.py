"""Read the messages of a list or of a stream.

A list is read at its head, and its elements are removed after the commit of their events. They have no number, so what
they contain says where they are: whoever reads or removes names digests of the elements that it expects at the head,
and a script compares them first. So a worker that goes on after it has lost its lease removes nothing but what it has
recorded; and one before whom something was removed notices it, and begins at the head again. An element that is there
twice is one event, because its id is a digest of the record.

A stream is read by no consumer group: the outbox has the position, as of a partition of Kafka. A group gives an entry
to the first worker that asks, also to one that has lost its lease, and the next worker would read what comes after it.
The group of the settings is only moved after the commit, so that Redis's tools show the position. A position is the id
of the last entry, and how many entries the stream had been given by then. Since Redis 7 a stream says how many it has
been given in all, so entries that were removed before they were pulled are counted. If the stream is not the one that
the position is about (made again, or lost by a failover), it is read from its beginning, and what is recorded already
is not recorded again.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import orjson
import redis
from redis.exceptions import ResponseError

from app.config.sources.redis import RedisSourceSettings
from app.events.minio_json import YEAR_10000
from app.events.parsing import Message
from workers.sources.base import Opened, SourceChanged, parses_position

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


_SHARE = "stream"
_SHOW_SECONDS = 1.0  # between two moves of the group


class _Id(NamedTuple):
    """Milliseconds since 1970, unless a producer has chosen something else, and a number."""

    ms: int
    number: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.number}"


class _Position(NamedTuple):
    """After the entry `id`, the last of `given`; None if the server does not count them."""

    id: _Id
    given: int | None

    def __str__(self) -> str:
        return str(self.id) if self.given is None else f"{self.id}/{self.given}"


class _Stream(NamedTuple):
    """What the server says of the stream. `last` is the id of the last entry that it was ever given."""

    length: int
    given: int | None
    last: _Id
    oldest: _Id | None
    newest: _Id | None

    @property
    def beginning(self) -> _Position:
        """The position before the oldest entry."""
        return _Position(_NONE, None if self.given is None else self.given - self.length)


_NONE = _Id(0, 0)
_MISSING = _Stream(0, 0, _NONE, None, None)


class StreamReader:
    """One stream."""

    kind = "stream"

    def __init__(self, settings: RedisSourceSettings) -> None:
        self._settings = settings
        self._position = _Position(_NONE, None)  # of what is pulled
        self._taken: _Position | None = None  # that the group does not show yet
        self._shown_at = 0.0
        self._portion = Portion()

    def open(self, client: redis.Redis, positions: Mapping[str, str]) -> Opened:
        """Begin after the position, or where that is not possible, at the beginning."""
        stored = _parse(positions[_SHARE]) if _SHARE in positions else None
        stream = self._look(client)
        if stored is None:
            begin, lost = stream.beginning, ""
            if self._settings.start == "latest":
                begin = _Position(stream.newest or _NONE, stream.given)
        elif stream.oldest and stream.oldest <= stored.id <= stream.last and not self._has(client, stored.id):
            begin, lost = stream.beginning, f"entry {stored.id}, up to which it was pulled, is not there any more"
        else:
            begin, lost = _follow(stored, stream)
        self._position, self._taken = begin, None
        if lost and begin == stream.beginning:
            lost += ": the stream was made again or has lost entries; it is pulled from its beginning"
        return Opened({} if begin == stored else {_SHARE: str(begin)}, [lost] if lost else [])

    def pull(self, client: redis.Redis, most: int, seconds: float) -> Sequence[Message]:
        """Return the next entries."""
        self._compare(self._look(client))
        words: list[Any] = ["XREAD", "COUNT", min(most, self._portion.count)]
        words += ["BLOCK", max(1, round(seconds * 1000)), "STREAMS", self._settings.key, str(self._position.id)]
        answer = ask(client, *words)
        messages = [self._message(_id(entry), fields) for entry, fields in answer[0][1]] if answer else []
        self._portion.learn(messages)
        return messages

    def commit(self, client: redis.Redis, messages: Sequence[Message]) -> None:
        """Have the group show the position, once a second at most; whether that is possible does not matter."""
        if messages:
            self._taken = _parse(messages[-1].position)
        if self._taken and self._settings.group and time.monotonic() >= self._shown_at + _SHOW_SECONDS:
            self._shown_at = time.monotonic()
            taken, self._taken = self._taken, None
            words: list[Any] = [self._settings.key, self._settings.group, str(taken.id)]
            words += [] if taken.given is None else ["ENTRIESREAD", taken.given]
            try:
                ask(client, "XGROUP", "SETID", *words)
            except ResponseError as error:
                if str(error).startswith("NOGROUP"):
                    self._create_group(client, words)

    def lag(self, client: redis.Redis) -> int | None:
        """Return how many entries come after those that are pulled; None if the server does not count them."""
        stream, position = self._look(client), self._position
        if position.id >= stream.last:
            return 0
        if stream.given is not None and position.given is not None:
            return max(0, stream.given - position.given)
        return stream.length if stream.oldest and position.id < stream.oldest else None

    def _compare(self, stream: _Stream) -> None:
        """Note how many entries there are. Raises `SourceChanged` if some have been removed, which `open` reports."""
        position, lost = _follow(self._position, stream)
        if lost:
            raise SourceChanged
        self._position = position

    def _look(self, client: redis.Redis) -> _Stream:
        try:
            answer = ask(client, "XINFO", "STREAM", self._settings.key)
        except ResponseError as error:
            if "no such key" in str(error):
                return _MISSING
            raise
        facts = dict(zip(answer[::2], answer[1::2], strict=False))
        oldest, newest = facts[b"first-entry"], facts[b"last-entry"]
        return _Stream(
            length=facts[b"length"],
            given=facts.get(b"entries-added"),
            last=_id(facts[b"last-generated-id"]),
            oldest=_id(oldest[0]) if oldest else None,
            newest=_id(newest[0]) if newest else None,
        )

    def _has(self, client: redis.Redis, entry: _Id) -> bool:
        return bool(ask(client, "XRANGE", self._settings.key, str(entry), str(entry)))

    def _create_group(self, client: redis.Redis, words: Sequence[Any]) -> None:
        try:
            ask(client, "XGROUP", "CREATE", *words)
        except ResponseError:
            return

    def _message(self, entry: _Id, words: Sequence[bytes]) -> Message:
        """Return an entry's message; one without the field is kept as it is, because no events are found in that."""
        given = self._position.given
        self._position = _Position(entry, None if given is None else given + 1)
        fields = {name.decode(errors="replace"): value for name, value in zip(words[::2], words[1::2], strict=True)}
        body = fields.pop(self._settings.field, None)
        texts = {name: value.decode(errors="replace") for name, value in fields.items()}
        return Message(
            body=orjson.dumps(texts) if body is None else body,
            share=_SHARE,
            position=str(self._position),
            headers={name.lower(): text for name, text in texts.items()},
            sent_at=entry.ms if entry.ms < YEAR_10000 else 0,  # a producer may have chosen it
        )


def _follow(position: _Position, stream: _Stream) -> tuple[_Position, str]:
    """Return where to go on from a position, and what was lost before that."""
    if stream is _MISSING:
        return position, ""
    if stream.last < position.id:
        return stream.beginning, f"the stream ends at {stream.last}, before {position.id}, up to which it was pulled"
    if stream.given is None or position.given is None:
        return position, ""
    if stream.oldest is None or position.id < stream.oldest:
        left = stream.length
    elif position.id == stream.last:
        left = 0
    else:
        return position, ""
    lost = stream.given - position.given - left
    if lost < 0:
        return stream.beginning, f"the stream has been given {-lost} fewer entries than were pulled from it"
    where = _Position(position.id, stream.given - left)
    return where, f"{lost} entries were removed before they were pulled" if lost else ""


def _id(text: bytes) -> _Id:
    ms, _, number = text.decode().partition("-")
    return _Id(int(ms), int(number))


@parses_position
def _parse(text: str) -> _Position:
    entry, slash, given = text.partition("/")
    return _Position(_id(entry.encode()), int(given) if slash else None)
