"""The filters of a rule beside prefix and suffix: how they are written, and which of them cannot be."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.config.errors import BadSettings, BadValue
from app.rules.filters import (
    NO_FILTERS,
    Filters,
    Pairs,
    compile_regex,
    filter_problems,
    literal_beginning,
    parse_filters,
)
from tests.support.properties import thorough

ALL: dict[str, Any] = {
    "regex": "in/.*",
    "metadata": {"x-amz-meta-color": "blue", "content-type": "image/png"},
    "tags": {"team": "a=b", "b": ""},
    "min_size": 0,
    "max_size": 5 << 40,
}


def test_what_is_written_is_read_again_in_its_order() -> None:
    filters = parse_filters(ALL)
    assert filters.members == ALL
    assert parse_filters(filters.members) == filters
    assert list(filters.members["metadata"]) == ["x-amz-meta-color", "content-type"]
    assert parse_filters({"min_size": "1MiB", "max_size": "2KiB"}).members == {"min_size": 1 << 20, "max_size": 2048}


def test_no_filters_are_none_however_they_are_written() -> None:
    for members in ({}, dict.fromkeys(ALL), {"regex": "", "metadata": {}, "tags": {}}):
        filters = parse_filters(members)
        assert filters == NO_FILTERS
        assert not filters
        assert filters.members == {}
        assert filters.words == []


def test_the_order_of_names_makes_no_other_filter() -> None:
    one, other = Filters(tags=Pairs(a="1", b="2")), Filters(tags=Pairs(b="2", a="1"))
    assert one == other
    assert len({one, other}) == 1
    assert one != Filters(tags=Pairs(a="1"))
    assert one != Filters(metadata=Pairs(a="1", b="2"))


def test_filters_are_shown_in_words() -> None:
    assert parse_filters(ALL).words == [
        "regex in/.*", "metadata x-amz-meta-color=blue", "metadata content-type=image/png", "tag team=a=b", "tag b=",
        "size>=0", "size<=5120GiB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "members",
    [
        {"regex": 1}, {"regex": ["a"]}, {"metadata": "a=b"}, {"metadata": ""}, {"metadata": ["a"]}, {"tags": {"a": 1}},
        {"tags": {"a": None}}, {"min_size": "large"}, {"min_size": "-1"}, {"max_size": 1.5}, {"max_size": True},
        {"max_size": ""}, {"min_size": "9" * 30},
    ],
)  # fmt: skip
def test_a_member_of_another_type_is_refused_with_its_name(members: Mapping[str, Any]) -> None:
    with pytest.raises(BadSettings) as refused:
        parse_filters(members)
    assert [problem.key for problem in refused.value.problems] == list(members)
    assert refused.value.problems[0].hint


def problems(**members: Any) -> list[str]:
    return [f"{problem.key}: {problem.problem}" for problem in filter_problems(parse_filters(members))]


def test_values_that_can_be() -> None:
    assert problems(**ALL) == []
    assert problems(regex="x" * 1024, metadata={"n" * 256: "v" * 2048}, min_size=5, max_size=5) == []
    assert problems(tags={str(number): "é\U0001f600 =" for number in range(50)}) == []


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"regex": "("}, "regex: is not a regular expression: missing ): ("),
        ({"regex": "a(?=b)"}, "regex: is not a regular expression: invalid perl operator: (?="),
        ({"regex": r"(a)\1"}, "regex: is not a regular expression: invalid escape sequence: \\1"),
        ({"regex": "x" * 1025}, "regex: is too long"),
        ({"regex": "é" * 513}, "regex: is too long"),
        ({"regex": "a\0"}, "regex: contains a NUL"),
        ({"regex": "a\x01"}, "regex: contains a control character that XML cannot hold"),
        ({"regex": "\ud800"}, "regex: is not text"),
        ({"regex": "a{1001}"}, "regex: is not a regular expression: invalid repetition size: {1001}"),
        ({"regex": "((a{100}){100})"}, "regex: is not a regular expression: invalid repetition size: {100}"),
        ({"regex": r"(\pL{30}x){10}"}, "regex: is too complex"),
        ({"metadata": {"": "x"}}, "metadata: has an entry without a name"),
        ({"metadata": {"A": "x", "a": "y"}}, "metadata: has a name twice"),
        ({"metadata": {"n" * 257: "x"}}, "metadata: has 257 characters"),
        ({"tags": {"a": "x" * 2049}}, "tags: has 2049 characters"),
        ({"tags": {"a": "x\ny"}}, "tags: has a character that is not allowed"),
        ({"tags": {"a\0": "x"}}, "tags: has a character that is not allowed"),
        ({"tags": {"a": "\ud800"}}, "tags: has a character that is not allowed"),
        ({"tags": {str(number): "" for number in range(51)}}, "tags: has 51 entries"),
        ({"min_size": -1}, "min_size: is out of range"),
        ({"max_size": 2**53 + 1}, "max_size: is out of range"),
        ({"min_size": 6, "max_size": 5}, "min_size: is more than max_size"),
    ],
)
def test_values_that_cannot_be(members: Mapping[str, Any], problem: str) -> None:
    assert problems(**members) == [problem]


def test_an_error_can_be_sent_whatever_the_value_is() -> None:
    for members in ({"regex": "\ud800("}, {"regex": "\udfff" * 2000}, {"tags": {"\ud800": "\ud800"}}):
        for problem in filter_problems(parse_filters(members)):
            str(problem).encode()


HOSTILE = [
    (r"(a+)+b", "a" * 4096),
    (r"(a|aa)+$", "a" * 4095 + "b"),
    (r"(a*)*b", "a" * 4096),
    (r"(.*,){50}P", ",".join("1" * 4096)),
    (r"(x?){200}x{200}", "x" * 200),
    (r"([a-c]{0,20}a){20}b", "ba" * 2048),
    (r"[^a]*a.{60}b", "ab" * 2048),  # its automaton has 2^60 states
]


@pytest.mark.parametrize(("regex", "key"), HOSTILE, ids=[regex for regex, _ in HOSTILE])
def test_an_expression_that_would_keep_backtracking_busy_for_ever_is_matched_at_once(regex: str, key: str) -> None:
    compiled = compile_regex(regex)
    start = time.process_time()
    compiled.fullmatch(key.encode())
    assert time.process_time() - start < 2, "a backtracking engine takes longer than the universe has existed"


def test_the_whole_key_has_to_match_and_nothing_more_than_a_line_is_any_character() -> None:
    def matches(regex: str, key: str) -> bool:
        return compile_regex(regex).fullmatch(key.encode("utf-8", "surrogatepass")) is not None

    assert matches("a|ab", "ab")
    assert matches("^ab$", "ab")
    assert not matches("b", "abc")
    assert not matches("ab", "ab\n")
    assert not matches("a.b", "a\nb")  # as in Ceph
    assert matches("(?s)a.b", "a\nb")
    assert matches("(?i)É", "é")
    assert matches("..", "é\U0001f600")
    matches(".*", "a\ud800b")  # either way, but without an error


@pytest.mark.parametrize(
    ("regex", "literal"),
    [
        ("", ""), ("abc", "abc"), ("^logs/2026", "logs/2026"), ("logs/.*", "logs/"), ("ab*c", "a"), ("ab?c", "a"),
        ("ab+c", "a"), ("ab{0}c", "a"), ("a", "a"), ("a*", ""), ("a|b", ""), ("ab[|]", ""), ("(?i)abc", ""),
        (r"a\.b", "a"), (r"\Qa*b\E", ""), ("é+", ""), ("ab(?i)c", "a"), ("^^a", ""), ("ab(c)", "ab"),
    ],
)  # fmt: skip
def test_a_literal_beginning_is_found_where_it_is_obvious(regex: str, literal: str) -> None:
    assert literal_beginning(regex) == literal


PARTS = ["a", "b", "é", "^", "$", "*", "+", "?", "{0}", "{0,1}", "(?i)", "(?s)", "(", ")", "\\Q", "\\E", "[", "]", "."]


@thorough(300)
@given(regex=st.lists(st.sampled_from(PARTS), max_size=5).map("".join), key=st.text(alphabet="abé", max_size=3))
@example(regex="ab(?i)*", key="a")
@example(regex="ab+(?s){0,1}", key="a")
@example(regex=r"ab\Q\E*", key="a")
def test_a_repetition_beyond_flags_counts_for_what_is_before_them(regex: str, key: str) -> None:
    assert_key_has_literal_beginning(regex, key)


@thorough(300)
@given(regex=st.text(alphabet="ab/.*+?^$()[]{}|\\1,-i:Qé", max_size=9), key=st.text(alphabet="ab/1é^", max_size=6))
@example(regex="ab{0}", key="a")
@example(regex="a??b", key="b")
@example(regex="(?i:a)b", key="Ab")
@example(regex="^a$", key="a")
def test_every_key_that_an_expression_matches_has_its_literal_beginning(regex: str, key: str) -> None:
    assert_key_has_literal_beginning(regex, key)


def assert_key_has_literal_beginning(regex: str, key: str) -> None:
    try:
        compiled = compile_regex(regex)
    except BadValue:
        return
    if compiled.fullmatch(key.encode()) is not None:
        assert key.startswith(literal_beginning(regex))


@thorough(200)
@given(regex=st.text(alphabet="ab.*?|()", max_size=7), key=st.text(alphabet="ab", max_size=5))
def test_simple_expressions_match_what_python_matches(regex: str, key: str) -> None:
    try:
        compiled, python = compile_regex(regex), re.compile(regex)
    except (BadValue, re.error):
        return
    assert (compiled.fullmatch(key.encode()) is None) == (python.fullmatch(key) is None)
