"""The commands that write a portion of events into a hash, at most one of each kind, or into a stream."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from app.events.model import Event
from workers.targets.messages import Write
from workers.targets.payloads import change, collapse

# KEYS: the hash; ARGV: path, version, path, version, ... Values that are not JSON were written by others and stay.
_REMOVE_VERSIONS = """
local removed = 0
for i = 1, #ARGV, 2 do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  local read, document = pcall(cjson.decode, value or '')
  if read then
    local is_record, version = pcall(function() return document.Records[1].s3.object.versionId end)
    if is_record then
      if version == nil or version == cjson.null or version == '' then version = 'null' end
      if version == ARGV[i + 1] then removed = removed + redis.call('HDEL', KEYS[1], ARGV[i]) end
    end
  end
end
return removed
"""


class Command(NamedTuple):
    """The words of a command, and the paths of the objects that it is about."""

    words: list[Any]
    paths: Iterable[str]


def namespace_commands(key: str, events: Sequence[Event]) -> list[Command]:
    """Return the commands that leave the hash as the events, applied one after the other, would."""
    rows = collapse(change(event, "namespace") for event in events)
    commands = []
    if rows.documents:
        commands.append(Command(["HSET", key, *chain.from_iterable(rows.documents.items())], rows.documents))
    if rows.removed:
        commands.append(Command(["HDEL", key, *rows.removed], rows.removed))
    if rows.versions:
        words = ["EVAL", _REMOVE_VERSIONS, 1, key, *chain.from_iterable(rows.versions)]
        commands.append(Command(words, [path for path, _ in rows.versions]))
    return commands


def stream_commands(key: str, events: Sequence[Event], write: Write, max_entries: int) -> list[Command]:
    """Return the commands that append the events to the stream; the last one has it trimmed."""
    trim = ["MAXLEN", "~", max_entries] if max_entries else []
    return [
        Command(
            ["XADD", key, *(trim if place == len(events) else ()), "*", *chain.from_iterable(_fields(event, write))],
            [event.path],
        )
        for place, event in enumerate(events, 1)
    ]


def _fields(event: Event, write: Write) -> Iterable[tuple[str, str]]:
    """Return what an entry of a stream consists of."""
    return (
        ("id", event.id),
        ("event", event.name),
        ("bucket", event.bucket),
        ("key", event.key),
        ("body", write(event)),
    )
