"""What the bucket holds under one key, from its whole history at once: what the incremental fold is compared with.

Pure, and free of arrival order. It keeps nothing from one event to the next, and shares no code with the fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.events.names import NULL, ContentChange, content_change, is_concrete
from app.events.order import Absent, Entry, Holding, Present, Unknown, comparable

_Place = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class _Step:
    content_change: ContentChange
    version: str
    sequencer: str
    place: _Place
    seq: int


def current(history: Sequence[Entry]) -> Holding:
    """What lies on top. The history may come in any order; `seq` decides only where sequencers do not.

    * A creation is a layer; creating a version again, or the null version, replaces its layer.
    * A marker is a layer without object. Its version named again with a newer sequencer means that the marker was
      itself removed (as MinIO: §1.1); with the same sequencer it is a repeat (§1.7).
    * Removing a concrete version takes its layer away, whenever that is heard: its name is never used again.
    * A removal without version, all versions' removal, and a marker without a version of its own (Ceph names the
      version beneath, §12.2) cover all that was before.
    * Where nothing is left, the answer is `Unknown` if what is gone was never seen to come: there may be more.
    """
    steps = _steps(history)
    created = {step.version for step in steps if step.content_change is ContentChange.CREATED}
    markers = _markers(steps, created)
    removed = {step.version for step in steps if step.content_change is ContentChange.REMOVED}
    layers = [
        *_objects(steps, removed),
        *_standing(markers, removed),
        *_null_version(steps),
        *_covers(steps, created),
    ]
    if layers:
        top = max(layers, key=lambda step: step.place)
        return Present(top.seq) if top.content_change is ContentChange.CREATED else Absent()
    # A marker that was removed came off something, unless all that is known to have been there is gone too.
    explained = bool(created) and removed <= created | markers.keys()
    return Absent() if explained else Unknown()


def _steps(history: Iterable[Entry]) -> list[_Step]:
    steps = []
    latest = ""
    for entry in sorted(history, key=lambda entry: entry.seq):
        meaning = content_change(entry.name)
        if meaning is ContentChange.NOTHING:
            continue
        sequencer = comparable(entry.sequencer)
        latest = max(latest, sequencer)
        steps.append(
            _Step(
                content_change=meaning,
                version=entry.version or (NULL if meaning is ContentChange.CREATED else ""),
                sequencer=sequencer,
                place=(sequencer or latest, _rank(meaning, sequencer), entry.seq),
                seq=entry.seq,
            )
        )
    return steps


def _rank(meaning: ContentChange, sequencer: str) -> int:
    """The order at one sequencer: what removes an object may carry the object's own, what has none came as it came."""
    if not sequencer:
        return 2
    return 0 if meaning in (ContentChange.CREATED, ContentChange.DELETE_MARKER) else 1


def _objects(steps: Iterable[_Step], removed: set[str]) -> Iterable[_Step]:
    newest: dict[str, _Step] = {}
    for step in steps:
        if step.content_change is ContentChange.CREATED and is_concrete(step.version) and step.version not in removed:
            before = newest.get(step.version)
            newest[step.version] = step if before is None else max(before, step, key=lambda one: one.place)
    return newest.values()


def _markers(steps: Iterable[_Step], created: set[str]) -> dict[str, list[_Step]]:
    found: dict[str, list[_Step]] = {}
    for step in steps:
        if (
            step.content_change is ContentChange.DELETE_MARKER
            and is_concrete(step.version)
            and step.version not in created
        ):
            found.setdefault(step.version, []).append(step)
    return found


def _standing(markers: Mapping[str, list[_Step]], removed: set[str]) -> Iterable[_Step]:
    for version, mentions in markers.items():
        undeleted = len({step.sequencer for step in mentions if step.sequencer}) > 1
        if not undeleted and version not in removed:
            yield min(mentions, key=lambda step: step.place)


def _null_version(steps: Iterable[_Step]) -> Iterable[_Step]:
    """There is one at a time, object or marker: the last word on it counts."""
    last = max((step for step in steps if step.version == NULL), key=lambda step: step.place, default=None)
    return () if last is None or last.content_change is ContentChange.REMOVED else (last,)


def _covers(steps: Iterable[_Step], created: set[str]) -> Iterable[_Step]:
    return (
        step
        for step in steps
        if step.content_change is ContentChange.ALL_DELETED
        or (step.content_change is ContentChange.REMOVED and not step.version)
        or (
            step.content_change is ContentChange.DELETE_MARKER
            and (not step.version or (is_concrete(step.version) and step.version in created))
        )
    )
