"""Rules with filters on what an event carries, and the matcher against trying every rule."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.events.parsing import parse
from app.rules.filters import (
    MAX_MATCHED_BYTES,
    MAX_PROGRAMS,
    Expressions,
    Filters,
    MatchingBusy,
    Pairs,
    compile_regex,
    not_waiting,
    one_at_a_time,
    regex_size,
)
from app.rules.matching import EventFacts, check_expressions, compile_rules, pattern
from app.rules.model import BadRules, Rule
from tests.services import speed
from tests.support.captured import LINES
from tests.support.properties import thorough, times
from tests.support.rule_matching import DELETE, PUT, TARGET, deep_match, fastest


def rule(
    filters: Filters, prefix: str = "", suffix: str = "", bucket: str = "b", events: tuple[str, ...] = ("*",)
) -> Rule:
    return Rule(bucket=bucket, events=events, prefix=prefix, suffix=suffix, target=TARGET, filters=filters)


def record(**thing: Any) -> str:
    return orjson.dumps({"s3": {"object": thing}}).decode()


def matches(filters: Filters, carried: str, key: str = "k", name: str = PUT) -> bool:
    return compile_rules([(rule(filters), 1)]).targets("b", name, key, carried) == (1,)


MINIO = record(
    key="k", size=11, eTag="e", userMetadata={"content-type": "text/plain", "X-Amz-Meta-Color": "Blue", "x": "y"}
)
CEPH = (
    b'{"Records":[{"eventVersion":"2.2","eventSource":"ceph:s3","eventTime":"2026-01-01T00:00:00.123456Z",'
    b'"eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b"},"object":{"key":"in/a b","size":"1024","eTag":"e",'
    b'"metadata":[{"key":"x-amz-meta-color","val":"Blue"},{"key":"odd"},7],'
    b'"tags":[{"key":"team","val":"a"},{"key":"team","val":"b"},{"key":"Stage","val":"prod"}]}}}]}'
)


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"content-type": "text/plain"}, True),
        ({"Content-Type": "text/plain"}, True),
        ({"content-type": "Text/Plain"}, False),
        ({"x-amz-meta-color": "Blue"}, True),
        ({"color": "Blue"}, True),
        ({"COLOR": "Blue", "content-type": "text/plain"}, True),
        ({"color": "Blue", "shape": "round"}, False),
        ({"color": ""}, False),
        ({"X": "y"}, True),
        ({"x-amz-meta-x": "y"}, False),
    ],
)
def test_metadata_matches_by_all_of_its_entries_whatever_the_case_of_their_names(
    metadata: dict[str, str], match: bool
) -> None:
    assert matches(Filters(metadata=Pairs(metadata)), MINIO) is match


@pytest.mark.parametrize(
    ("filters", "match"),
    [
        (Filters(tags=Pairs(team="a")), True),
        (Filters(tags=Pairs(team="b", Stage="prod")), True),
        (Filters(tags=Pairs(stage="prod")), False),  # tags are case-sensitive
        (Filters(tags=Pairs(team="c")), False),
        (Filters(metadata=Pairs(color="Blue"), tags=Pairs(team="a"), min_size=1024, max_size=1024), True),
        (Filters(metadata=Pairs(team="a")), False),
        (Filters(regex="in/. b", min_size=1025), False),
        (Filters(regex="in/. b", max_size=1024), True),
        (Filters(regex="a b", max_size=1024), False),
    ],
)
def test_an_event_of_ceph_is_matched_by_what_it_carries(filters: Filters, match: bool) -> None:
    [event] = parse(CEPH, {}, now_ms=1).events
    found = compile_rules([(rule(filters), 1)]).targets(event.bucket, event.name, event.key, event.record)
    assert found == ((1,) if match else ())


def test_tags_as_an_object_are_tags_too() -> None:
    assert matches(Filters(tags=Pairs(team="a")), record(tags={"team": "a"}))
    assert not matches(Filters(tags=Pairs(team="a")), record(userMetadata={"team": "a"}))


@pytest.mark.parametrize(
    ("name", "thing", "size"),
    [
        (PUT, {"key": "k", "size": 5, "eTag": "e"}, 5),
        (PUT, {"key": "k", "eTag": "e"}, 0),  # MinIO leaves out a size of 0
        (PUT, {"key": "k"}, 0),
        ("s3:ObjectAccessed:Get", {"key": "k", "eTag": "e"}, 0),
        ("s3:ObjectAccessed:Get", {"key": "k"}, None),
        (DELETE, {"key": "k"}, None),
        (DELETE, {"key": "k", "size": 7}, 7),  # Ceph sends it
        (DELETE, {"key": "k", "eTag": ""}, None),
        (PUT, {"size": -1}, None),
        (PUT, {"size": "5"}, None),
        (PUT, {"size": None}, None),
        (PUT, {"size": True}, None),
        (PUT, {"size": 1e300}, None),
        (PUT, {}, None),
    ],
)
def test_the_size_of_an_event(name: str, thing: dict[str, Any], size: int | None) -> None:
    carried = record(**thing)
    assert EventFacts(name, carried).size == size
    assert matches(Filters(min_size=0), carried, name=name) is (size is not None)
    assert matches(Filters(max_size=4), carried, name=name) is (size == 0)
    assert matches(Filters(min_size=5, max_size=7), carried, name=name) is (size in (5, 7))


ODD = [
    "", "{", "null", "[]", "7", '"x"', "{}", '{"s3":null}', '{"s3":{"object":[]}}', '{"s3":{"object":{"tags":7}}}',
    '{"s3":{"object":{"tags":[[],{"key":[]},{"key":{},"val":1}],"userMetadata":[1],"metadata":{"a":{}}}}}',
]  # fmt: skip


@pytest.mark.parametrize("carried", ODD)
def test_an_event_that_carries_nothing_of_the_kind_does_not_match_and_raises_nothing(carried: str) -> None:
    for filters in (Filters(tags=Pairs(a="1")), Filters(metadata=Pairs(a="1")), Filters(tags=Pairs({"key": "x"}))):
        assert not matches(filters, carried)
    assert not matches(Filters(min_size=0), carried, name=DELETE)
    assert matches(Filters(regex="k"), carried)


def test_no_removal_that_minio_sent_has_metadata_tags_or_a_size() -> None:
    removed = [
        event
        for line in LINES
        for event in parse(line.encode(), {}, now_ms=1).events
        if event.name in (DELETE, "s3:ObjectRemoved:DeleteMarkerCreated")
    ]
    assert len(removed) > 3
    for event in removed:
        facts = EventFacts(event.name, event.record)
        assert (facts.size, facts.pairs) == (None, frozenset())


def test_a_stored_expression_that_cannot_be_compiled_any_more_matches_nothing_and_stops_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        matcher = compile_rules([(rule(Filters(regex="(?=a)")), 1), (rule(Filters()), 2)])
        assert [matcher.targets("b", PUT, "a") for _ in range(3)] == [(2,)] * 3
    assert caplog.text.count("a rule matches nothing") == 1


def test_a_record_is_not_read_if_no_rule_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [(rule(Filters()), 1), (rule(Filters(regex=".*")), 2), (rule(Filters(tags=Pairs(a="1")), prefix="no/"), 3)]
    matcher = compile_rules(rules)
    monkeypatch.setattr("app.rules.matching.orjson", None)
    assert matcher.targets("b", PUT, "k", "{") == (1, 2)


def naive(rules: Sequence[tuple[Rule, int]], key: str, facts: EventFacts) -> set[int]:
    """Try every rule, one condition after the other."""
    found = set()
    for one, target in rules:
        asked = one.filters
        pairs = {("metadata", name.lower(), value) for name, value in asked.metadata.items()}
        pairs |= {("tags", name, value) for name, value in asked.tags.items()}
        sized = asked.min_size is None and asked.max_size is None
        if facts.size is not None:
            sized = (asked.min_size or 0) <= facts.size <= (2**60 if asked.max_size is None else asked.max_size)
        if (
            deep_match(pattern(one.prefix, one.suffix), key.encode())
            and (not asked.regex or compile_regex(asked.regex).fullmatch(key.encode()))
            and pairs <= facts.pairs
            and sized
        ):
            found.add(target)
    return found


few_pairs = st.dictionaries(st.sampled_from("AaBb"), st.sampled_from("12"), max_size=2)
sizes = st.none() | st.integers(0, 3)
some_filters = st.builds(
    Filters,
    regex=st.sampled_from(["", "", "a.*", "ab?", ".*b", "a|b", "(ab)+", "[ab]*"]),
    metadata=few_pairs.filter(lambda pairs: len({name.lower() for name in pairs}) == len(pairs)).map(Pairs),
    tags=few_pairs.map(Pairs),
    min_size=sizes,
    max_size=sizes,
)
affixes = st.sampled_from(["", "", "a", "ab", "b"])


@thorough(400)
@given(
    rules=st.lists(st.tuples(st.builds(rule, some_filters, affixes, affixes), st.integers(1, 5)), max_size=12),
    key=st.text(alphabet="ab", max_size=4),
    thing=st.fixed_dictionaries({}, optional={"size": st.integers(0, 4), "tags": few_pairs, "userMetadata": few_pairs}),
    name=st.sampled_from([PUT, DELETE]),
)
@example(rules=[(rule(Filters(regex="ab?")), 1)], key="a", thing={}, name=PUT)
@example(rules=[(rule(Filters(regex="(ab)+"), suffix="b"), 1)], key="ab", thing={}, name=PUT)
def test_the_matcher_finds_what_trying_every_rule_finds(
    rules: list[tuple[Rule, int]], key: str, thing: dict[str, Any], name: str
) -> None:
    carried = record(**thing)
    found = compile_rules(rules).targets("b", name, key, carried)
    assert set(found) == naive(rules, key, EventFacts(name, carried))
    assert len(set(found)) == len(found)
    order = [target for _, target in rules]
    assert sorted(found, key=order.index) == list(found)


@pytest.mark.slow
@pytest.mark.parametrize("spread", ["regex", "tag", "metadata"])
def test_thousands_of_filtered_rules_cost_about_what_ten_cost(spread: str) -> None:
    def made(number: int) -> tuple[Rule, int]:
        part = f"{number:05d}"
        return rule(
            {
                "regex": Filters(regex=f"user/{part}/.*[.]jpe?g"),
                "tag": Filters(tags=Pairs(tenant=part, stage="prod")),
                "metadata": Filters(metadata=Pairs({"x-amz-meta-tenant": part})),
            }[spread]
        ), number

    def event(number: int) -> tuple[str, str, str]:
        part = f"{number:05d}"
        carried = record(tags={"tenant": part, "stage": "prod"}, userMetadata={"X-Amz-Meta-Tenant": part})
        return "b", f"user/{part}/some/photo.jpg", carried

    many = [made(number) for number in range(times(2000, 10_000))]
    spread_out = range(0, len(many), len(many) // 10)
    assert fastest(many, [event(n) for n in spread_out] * 50) < 5 * fastest(
        many[:10], [event(n) for n in range(10)] * 50
    )


MANY = [f".*/team-{number}/.*[.](jpg|png)" for number in range(600)]


@pytest.mark.parametrize("memory", [1 << 24, 1 << 18, 1 << 14])
def test_many_expressions_match_what_each_matches_alone_with_or_without_room(
    monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    monkeypatch.setattr("app.rules.filters._MEMORY", memory)
    texts = [*MANY, "(?i)A/TEAM-7/.*", "a|a/team-7/x.jpg", "(?=no)", "^a/.*$", "[ab]*"]
    expressions = Expressions()
    for text in texts:
        expressions.add(text)
    for key in ["a/team-7/x.jpg", "a/team-8/x.gif", "a", "ab", "", "b/team-599/team-0/\n.png", "a\ud800"]:
        raw = key.encode("utf-8", "surrogatepass")
        alone = {text for text in texts if text != "(?=no)" and compile_regex(text).fullmatch(raw)}
        assert set(expressions.matches(raw)) == alone, key


def test_a_thousand_expressions_cost_less_than_fifty_alone() -> None:
    many = [(rule(Filters(regex=f"in/{number}/[a-z0-9]+/.*[.](jpg|png)"), prefix="in/"), 1) for number in range(1000)]
    events = [("b", f"in/{number}/some/photo.jpg") for number in range(100)]
    alone = [compile_regex(one.filters.regex) for one, _ in many[:50]]
    start = time.thread_time()
    for _, key in events:
        for one in alone:
            one.fullmatch(key.encode())
    assert fastest(many, events) < time.thread_time() - start


HOSTILE = [f"(.*a.{{{100 + number}}}|.*b.{{{390 - number}}})" for number in range(20)]  # about 3,900 instructions each


@pytest.mark.parametrize(
    ("rules", "refused"),
    [
        ([rule(Filters(regex=text)) for text in HOSTILE[:10]], False),
        ([rule(Filters(regex=text)) for text in HOSTILE[:10] * 2], False),
        ([rule(Filters(regex=text)) for text in HOSTILE[:11]], True),
        ([rule(Filters(regex=text), bucket=f"b{n}") for n, text in enumerate(HOSTILE)], False),
        ([rule(Filters(regex=text), bucket="*" if n % 2 else "b") for n, text in enumerate(HOSTILE[:10])], False),
        ([rule(Filters(regex=text), bucket="*" if n % 2 else "b") for n, text in enumerate(HOSTILE[:11])], True),
        ([rule(Filters(regex=text), bucket="*") for text in HOSTILE[:11]], True),
        ([rule(Filters(regex=text), prefix=f"{n:02}/") for n, text in enumerate(HOSTILE)], False),
        ([rule(Filters(regex=f"{n:02}.*a.{{{300 + n}}}b.{{390}}")) for n in range(20)], False),
        ([rule(Filters(regex=HOSTILE[0]), prefix="a" * n) for n in range(20)], True),
        ([rule(Filters(regex=HOSTILE[0]), suffix="a" * n) for n in range(20)], True),
        ([rule(Filters(regex=HOSTILE[0]), prefix="a?*" + "a" * n) for n in range(20)], True),
    ],
)
def test_the_expressions_that_a_key_is_compared_with_are_bounded_together(rules: list[Rule], refused: bool) -> None:
    if not refused:
        check_expressions(rules)
        return
    with pytest.raises(BadRules, match="instructions of regular expressions for a key of bucket"):
        check_expressions(rules)


def test_a_thousand_ordinary_expressions_are_accepted() -> None:
    check_expressions([rule(Filters(regex=f".*/team-{number}/.*[.](jpg|png)")) for number in range(1000)])
    check_expressions([rule(Filters(regex=f"in/{number:05}/.*/[a-z0-9]+[.]jpe?g")) for number in range(10_000)])


@pytest.mark.parametrize(
    "form",
    [".*a[ab]{{{}}}b.*x", "[ab]*a[ab]{{{}}}c", "([ab]*c?){{{}}}d", "(.*a.{{{}}}|.*b.{{200}})"],
)
def test_a_key_that_is_costly_for_all_that_is_accepted_takes_a_fraction_of_a_second(form: str) -> None:
    texts, size = [], 0
    for number in range(1000):
        text = form.format(60 + number % 60) + str(number)
        if size + regex_size(text) > MAX_PROGRAMS:
            break
        texts.append(text)
        size += regex_size(text)
    check_expressions([rule(Filters(regex=text)) for text in texts])
    expressions = Expressions()
    for text in texts:
        expressions.add(text)
    keys = ["".join(Random(seed).choices("ab", k=MAX_MATCHED_BYTES)).encode() for seed in range(3)]
    expressions.matches(keys[0])  # compiles them
    took = []
    for key in keys[1:]:
        began = time.thread_time()
        expressions.matches(key)
        took.append(time.thread_time() - began)
    assert min(took) < 0.3 * speed.slowness(), took


def test_one_thread_at_a_time_goes_on_with_a_key_that_is_costly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.rules.filters._FREE_SECONDS", 0.001)
    expressions, key = Expressions(), "".join(Random(1).choices("ab", k=1000)).encode()
    for number in range(100):  # each byte of the key leads to another state of their automata
        expressions.add(f".*a[ab]{{{60 + number}}}b.*x{number}")
    assert not expressions.matches(key)
    with ThreadPoolExecutor(1) as pool:
        with one_at_a_time:
            with not_waiting:
                assert not expressions.matches(b"short"), "what costs little waits for nobody"
                with pytest.raises(MatchingBusy):
                    expressions.matches(key)
            waiting = pool.submit(expressions.matches, key)
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
        assert not waiting.result(60)


def test_a_key_that_is_longer_than_those_of_s3_matches_no_expression() -> None:
    rules = [(rule(Filters(regex=".*[.]jpg")), 1), (rule(Filters(), suffix=".jpg"), 2)]
    for size, found in ((1024, (1, 2)), (1025, (2,)), (4096, (2,))):
        key = "k" * (size - 4) + ".jpg"
        assert compile_rules(rules).targets("b", PUT, key) == found
    assert compile_rules(rules).targets("b", PUT, "\xe9" * 511 + ".jpg") == (2,), "in bytes"
