"""What streams hold of large events: each once for all readers, and up to a limit together."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.listen import stream
from app.api.listen.stream import LargeEvents, Line

SIZE = stream.MAX_LARGE_BYTES // 3


class _Reader:
    """A stream, as far as its buffer goes."""

    def __init__(self) -> None:
        self.waiting = SIZE
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def line(seq: int) -> Line:
    return Line(seq, f"id-{seq}", bytes(SIZE))


@pytest.fixture
def readers() -> list[Any]:
    return [_Reader() for _ in range(6)]


def test_readers_of_the_same_event_share_its_bytes(readers: list[Any]) -> None:
    large = LargeEvents()
    contents = [large.hold(reader, line(1)) for reader in readers]
    assert all(content is contents[0] for content in contents)
    for reader in readers:
        assert not large.has_room(line(2), stream.MAX_LARGE_BYTES)
        large.release(reader)
    assert large.has_room(line(2), stream.MAX_LARGE_BYTES)


def test_a_reader_that_reads_nothing_of_a_large_event_gives_way_to_others(readers: list[Any]) -> None:
    large = LargeEvents()
    for seq, reader in enumerate(readers[:3]):
        assert large.hold(reader, line(seq)) is not None
    for now in range(100):
        large.check(now)
    assert not any(reader.aborted for reader in readers), "nobody waits"
    for now in range(100, 120):
        assert large.hold(readers[3], line(3)) is None
        assert large.hold(readers[4], line(2)) is not None, "that one is held anyway"
        readers[0].waiting -= stream._PIECE  # it reads
        large.check(now)
    assert [reader.aborted for reader in readers] == [False, True, True, False, True, False]
    for reader in readers[1:5]:
        large.release(reader)
    assert large.hold(readers[3], line(3)) is not None
