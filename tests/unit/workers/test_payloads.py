"""The envelopes byte for byte, and what a batch does to a namespace."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events.model import Effect, Event
from tests.support import sample_events
from tests.support.properties import times
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, Outcome, Rejected, Unavailable
from workers.targets import payloads
from workers.targets.payloads import Append, Change, Nothing, Remove, RemoveVersion, Upsert

CAPTURED = list(sample_events.captured())


@pytest.mark.parametrize(("line", "event"), CAPTURED)
def test_the_log_envelope_is_what_minio_sent_byte_for_byte(line: str, event: Event) -> None:
    assert payloads.log(event) == line


@pytest.mark.parametrize(("line", "event"), CAPTURED[:: times(3, 1)])
def test_the_other_envelopes_hold_the_record_byte_for_byte(line: str, event: Event) -> None:
    record = line[line.index('"Records":[') + 11 : -2]
    when = json.loads(record)["eventTime"]
    assert payloads.records(event) == '{"Records":[' + record + "]}"
    assert payloads.redis_access(event) == '[{"Event":[' + record + '],"EventTime":"' + when + '"}]'
    assert payloads.redis_access(event, "guide") == '["' + when + '",' + record + "]"


def test_the_members_of_the_old_guides_are_around_the_same_record() -> None:
    """As in the guides of 2016 to 2020: `EventType`, and what MinIO's logger added, in whole seconds."""
    _, event = CAPTURED[0]
    body = json.loads(payloads.log(event, "guide"))
    assert list(body) == ["EventType", "Key", "Records", "level", "msg", "time"]
    assert (body["EventType"], body["Key"], body["level"], body["msg"]) == (event.name, event.path, "info", "")
    assert body["Records"] == json.loads(payloads.log(event))["Records"]
    assert body["time"] == payloads.timestamp(event)[:19] + "Z"


def test_only_the_document_stores_line_ends_with_a_newline() -> None:
    event = sample_events.put("a.txt")
    assert payloads.line(event) == payloads.records(event) + "\n"
    assert payloads.elasticsearch_access(event) == payloads.line(event)
    assert payloads.elasticsearch_access(event, "guide").count("\n") == 1
    texts = (payloads.log(event), payloads.records(event), payloads.redis_access(event))
    assert not any(text.endswith("\n") for text in texts)


@pytest.mark.parametrize(
    ("value", "spelt"),
    [
        ("a/b &<1>.jpg", r'"a/b \u0026\u003c1\u003e.jpg"'),
        ("\u2028\u2029", r'"\u2028\u2029"'),
        ("é🙂", '"é🙂"'),
        ('q"\\', r'"q\"\\"'),
        ("\b\f\n\r\t\x01\x7f", '"\\b\\f\\n\\r\\t\\u0001\x7f"'),
    ],
)
def test_text_is_spelt_as_go_spells_it(value: str, spelt: str) -> None:
    assert payloads.text(value) == spelt


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_stays_the_same_text(value: str) -> None:
    assert json.loads(payloads.text(value)) == value


@pytest.mark.parametrize(
    ("milliseconds", "spelt"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_795_221_236_082, "2026-11-21T00:33:56.082Z"),
        (1_795_221_236_000, "2026-11-21T00:33:56.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
    ],
)
def test_a_time_has_three_decimals(milliseconds: int, spelt: str) -> None:
    event = sample_events.put("a.txt")
    moved = Event(event.id, event.name, "b", "k", "", "", milliseconds, event.record)
    assert payloads.timestamp(moved) == spelt


def test_a_change_follows_the_effect_and_in_access_format_the_time() -> None:
    put, delete, head = sample_events.put("a"), sample_events.delete("a"), sample_events.head("a")
    version = sample_events.delete_version("a", "")
    assert payloads.change(put, "namespace") == Upsert("images/a", payloads.records(put))
    assert payloads.change(delete, "namespace") == Remove("images/a")
    assert payloads.change(version, "namespace") == RemoveVersion("images/a", "null")
    assert payloads.change(head, "namespace") == Nothing()
    for event in (put, delete, version, head):
        assert payloads.change(event, "access") == Append(payloads.timestamp(event), payloads.records(event))


def test_in_the_compatible_policy_only_a_delete_deletes() -> None:
    effects = {event.name: payloads.compatible_effect(event) for _, event in CAPTURED}
    assert len(effects) > 10
    assert [name for name, effect in effects.items() if effect is Effect.REMOVE] == ["s3:ObjectRemoved:Delete"]
    assert {effect for effect in effects.values() if effect is not Effect.REMOVE} == {Effect.UPSERT}


def document(version: str) -> str:
    thing = {"versionId": version} if version != "null" else {}
    return json.dumps({"Records": [{"s3": {"object": thing}}]})


def applied(rows: dict[str, str], change: Change) -> None:
    """What one change does to a store, done one by one: the model for `collapse`."""
    if isinstance(change, Upsert):
        rows[change.path] = change.document
    elif isinstance(change, Remove):
        rows.pop(change.path, None)
    elif isinstance(change, RemoveVersion) and change.path in rows:
        held = json.loads(rows[change.path])["Records"][0]["s3"]["object"].get("versionId") or "null"
        if held == change.version:
            del rows[change.path]


PATHS = st.sampled_from(["a", "b", "c"])
VERSIONS = st.sampled_from(["v1", "v2", "null"])
CHANGES = st.one_of(
    st.builds(Upsert, PATHS, VERSIONS.map(document)),
    st.builds(Remove, PATHS),
    st.builds(RemoveVersion, PATHS, VERSIONS),
    st.just(Nothing()),
)


@given(st.dictionaries(PATHS, VERSIONS.map(document)), st.lists(CHANGES, max_size=12))
def test_a_collapsed_batch_leaves_what_its_changes_leave_one_by_one(
    before: dict[str, str], changes: Sequence[Change]
) -> None:
    one_by_one = dict(before)
    for change in changes:
        applied(one_by_one, change)
    rows = payloads.collapse(changes)
    steps = [Upsert(path, text) for path, text in rows.documents.items()], [Remove(path) for path in rows.removed]
    asked = [RemoveVersion(path, version) for path, version in rows.versions]
    for order in ([*steps[0], *steps[1], *asked], [*asked, *steps[1], *steps[0]]):
        at_once = dict(before)
        for change in order:
            applied(at_once, change)
        assert at_once == one_by_one
    assert not set(rows.documents) & set(rows.removed)
    assert not {path for path, _ in rows.versions} & (set(rows.documents) | set(rows.removed))


def test_entries_of_the_access_format_do_not_collapse() -> None:
    with pytest.raises(TypeError, match="access"):
        payloads.collapse([Append("", "")])


@given(st.lists(st.sampled_from("abc"), max_size=20))
def test_waves_name_an_object_once_each_and_keep_its_order(keys: list[str]) -> None:
    made = [sample_events.put(key) for key in keys]
    waves = payloads.waves(made)
    assert sorted(index for wave in waves for index in wave) == list(range(len(made)))
    for wave in waves:
        assert len({made[index].path for index in wave}) == len(wave)
    number_of_wave = {index: number for number, wave in enumerate(waves) for index in wave}
    for first in range(len(made)):
        for second in range(first + 1, len(made)):
            if made[first].path == made[second].path:
                assert number_of_wave[first] < number_of_wave[second]


def test_what_follows_a_stuck_event_of_its_object_is_behind_it() -> None:
    a, b = (sample_events.put(key) for key in "ab")
    down = Unavailable("down")
    cases: list[tuple[list[Event], list[Outcome], list[Outcome]]] = [
        (
            [a, b, a, b],
            [Failed("x"), DELIVERED, DELIVERED, DELIVERED],
            [Failed("x"), DELIVERED, NOT_ATTEMPTED, DELIVERED],
        ),
        ([a, a, b, b], [down] * 4, [down, NOT_ATTEMPTED, down, NOT_ATTEMPTED]),
        ([a, a], [Rejected("never"), DELIVERED], [Rejected("never"), DELIVERED]),
        ([a, b], [DELIVERED, DELIVERED], [DELIVERED, DELIVERED]),
    ]
    for batch, outcomes, expected in cases:
        assert payloads.mark_not_attempted(batch, outcomes) == expected
