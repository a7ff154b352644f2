"""What a source reads of the messages that it has pulled: as much as one commit takes, and the rest later."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from typing import Any

import orjson

from app.events.limits import Limits
from app.events.parsing import Message
from tests.support.builders import event
from workers.sources import source_thread
from workers.sources.puller import _Reading


class _Queue:
    """A source that has these messages at once, and then none."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.left = list(messages)
        self.pulls = 0

    def commit(self, done: Sequence[Message]) -> None:
        """Nothing is told."""

    def pull(self, most: int, seconds: float) -> Sequence[Message]:
        self.pulls += 1
        pulled, self.left = self.left, []
        return pulled

    def lag(self) -> int:
        return 0


def test_messages_that_are_large_once_they_are_read_are_read_by_and_by() -> None:
    """Each of 15 kB has an event of 5 MB."""
    bodies = [
        gzip.compress(orjson.dumps(orjson.loads(event(f"{number}").record) | {"pad": "x" * 5_000_000}))
        for number in range(12)
    ]
    assert max(map(len, bodies)) < 15_000
    queue = _Queue([Message(body, position=str(number)) for number, body in enumerate(bodies)])
    settings: Any = type("Settings", (), {"frontend": "", "batch_size": 100, "tenant": ""})
    source: Any = queue
    reading, keys = _Reading(source, "amqp:x", settings, Limits()), list[str]()
    while read := reading.next(()):
        events = [one for message in read for one in message.events]
        assert sum(len(one.record) for one in events) < source_thread.COMMIT_BYTES + 6_000_000
        keys += [one.key for one in events]
    assert keys == [str(number) for number in range(12)]
    assert queue.pulls == 2
