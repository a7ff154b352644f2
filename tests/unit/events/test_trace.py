"""Trace contexts as W3C writes them, and what is made of those that are not written so."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events.model import MAX_STATE_CHARACTERS, trace_fields, trace_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_valid_parent_goes_on_as_it_came_and_blanks_around_it_do_not() -> None:
    assert trace_of(PARENT) == PARENT
    assert trace_of(f" {PARENT}\t") == PARENT
    assert trace_of(f"00-{TRACE}-{SPAN}-00") == f"00-{TRACE}-{SPAN}-00"


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "00",
        None,
        17,
        [PARENT],
        PARENT.upper(),
        f"{PARENT}-",
        f"{PARENT}-00",
        f"{PARENT}\n",
        f"{PARENT},{PARENT}",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0g",
        f"cc-{TRACE}-{SPAN}-01what-the-future-will-be-like",
        f"00-{TRACE[:-1]}\u0663-{SPAN}-01",
    ],
)
def test_a_parent_that_is_not_valid_is_ignored_and_its_state_with_it(bad: object) -> None:
    assert trace_of(bad, "vendor=1") == ""
    assert trace_fields(trace_of(bad, "vendor=1")) == []


def test_a_parent_of_a_later_version_goes_on_as_far_as_ours_knows_it() -> None:
    assert trace_of(f"cc-{TRACE}-{SPAN}-01") == PARENT
    assert trace_of(f"01-{TRACE}-{SPAN}-ff-what-the-future-will-be-like") == f"00-{TRACE}-{SPAN}-03"


def test_a_state_goes_with_its_parent() -> None:
    kept = trace_of(PARENT, "rojo=00f067aa0ba902b7, congo=t61r cWkg ,,1a-_*/@b=!~")
    assert trace_fields(kept) == [
        ("traceparent", PARENT),
        ("tracestate", "rojo=00f067aa0ba902b7,congo=t61r cWkg,1a-_*/@b=!~"),
    ]


@pytest.mark.parametrize(
    "bad",
    ["", " , ", "novalue", "a=", "=1", "A=1", "a=1,a=2", "a=b=c", "a=\u00e4", "a=1\r\nx: y", "a=\x00",
     ",".join(f"k{number}=1" for number in range(33)), f"{'k' * 257}=1", f"k={'1' * 257}", None, {"a": "b"}],
)  # fmt: skip
def test_a_state_that_is_not_valid_is_left_out_and_its_parent_goes_on(bad: object) -> None:
    assert trace_fields(trace_of(PARENT, bad)) == [("traceparent", PARENT)]


def test_a_state_that_is_too_long_loses_long_members_first_and_then_the_last() -> None:
    short = [f"k{number:02}={'v' * 20}" for number in range(16)]  # 24 characters each, 399 together
    long = f"long={'v' * 150}"
    assert trace_of(PARENT, ",".join([long, *short])) == f"{PARENT} {','.join(short)}"
    many = [f"k{number:02}={'v' * 96}" for number in range(6)]  # 100 characters each, 605 together
    assert trace_of(PARENT, ",".join(many)) == f"{PARENT} {','.join(many[:5])}"


@given(st.text(max_size=700) | st.from_regex(re.compile(r"([a-c]{1,3}=[!-~]{1,40},){1,40}", re.ASCII), fullmatch=True))
def test_whatever_comes_as_a_state_what_is_kept_is_short_one_line_and_understood_again(state: str) -> None:
    kept = trace_of(PARENT, state)
    assert len(kept) <= len(PARENT) + 1 + MAX_STATE_CHARACTERS
    assert kept.isascii()
    assert kept.isprintable()
    found = dict(trace_fields(kept))
    assert trace_of(found["traceparent"], found.get("tracestate")) == kept
