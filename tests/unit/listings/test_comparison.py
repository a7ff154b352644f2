"""What replaces a chunk when some of its keys have to stay as they were known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from app.events.own_events import DELETE
from app.listings import snapshot
from app.listings.comparison import Chunk, Replacement, compared, put_off
from app.listings.differences import Content, Counts, Entry, Listed, LoggedEvent, Run

NOW = 1_790_000_000_000
RUN = Run("images", "bucket:x", NOW, NOW, 0)
KEYS = st.sets(st.text(min_size=1, max_size=2), max_size=8)


def content(etag: str) -> Content:
    return Content(etag, 1, NOW - 3_600_000)


def compare(known: Sequence[Entry], listed: Sequence[Listed], most: int) -> list[Replacement]:
    """What a chunk of these entries is replaced by."""

    def logged(keys: Iterable[str]) -> list[dict[str, list[LoggedEvent]]]:
        return [{key: []} for key in keys]

    parts = compared(
        [Chunk(1, known[0].key)] if known else [], read=lambda _: snapshot.encode(known),
        logged=lambda keys: iter(logged(keys)), listed=listed, recent=(), run=RUN, numbers=iter(range(2, 99)),
        most=most,
    )  # fmt: skip
    return [part.replacement() for part in parts if part.is_changed]


@given(known=KEYS, listed=KEYS, late=KEYS, most=st.integers(1, 4))
def test_keys_that_are_put_off_stay_as_they_were_known_and_others_do_not(
    known: set[str], listed: set[str], late: set[str], most: int
) -> None:
    before = [Entry(key, "", content("a")) for key in sorted(known)]
    there = [Listed(key, "", content("b")) for key in sorted(listed)]
    chunks = {1: before} if before else {}
    found = []
    for replacement in compare(before, there, most):
        old = [entry for number in replacement.removed for entry in chunks[number]]
        kept = replacement
        for key in sorted(late & {event.key for event in replacement.events}, reverse=bool(most % 2)):
            kept = put_off(kept, {key}, old)  # one after the other
        created = sum(event.key not in known for event in kept.events)
        removed = sum(event.name == DELETE for event in kept.events)
        assert kept.found == Counts(created=created, changed=len(kept.events) - created - removed, removed=removed)
        for number in kept.removed:
            del chunks[number]
        for number, first, body in kept.added:
            chunks[number] = snapshot.decode(body)
            assert chunks[number][0].key == first
        found += [event.key for event in kept.events]
    ordered = sorted((entries for entries in chunks.values()), key=lambda entries: entries[0].key)
    after = [entry for entries in ordered for entry in entries]
    assert after == sorted(after, key=lambda entry: entry.key)
    expected = {key: content("a") for key in known & late} | {key: content("b") for key in listed - late}
    assert {entry.key: entry.known for entry in after} == expected
    assert set(found) == (known | listed) - late
