"""Reasons as they are stored: any text in, one bounded line out."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.outbox.column_values import MAX_REASON_CHARACTERS, clean_reason

_CHARACTERS = st.sampled_from('a"\\\x00\n\u2028\u202e\ud800\xa0é\U0001f600\ufffd')
_REPEATED = st.text(_CHARACTERS, max_size=20).map(lambda text: text * 999)
_TEXTS = st.text() | st.text(_CHARACTERS) | _REPEATED


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("HTTP 500", "HTTP 500"),
        ("line one\r\n\tline two", "line one   line two"),
        ("a\x00b", "a\ufffdb"),
        ("\x1b[31mred", "\ufffd[31mred"),
        ("\ud800", "\ufffd"),
        ("\u202etxt", "\ufffdtxt"),
        ("naïve 名 \U0001f600", "naïve 名 \U0001f600"),
        ("", ""),
    ],
)
def test_a_reason_keeps_what_can_be_printed(text: str, stored: str) -> None:
    assert clean_reason(text) == stored


@given(_TEXTS)
def test_ten_of_any_reason_fit_the_smallest_column(text: str) -> None:
    reason = clean_reason(text)
    assert all(char.isprintable() for char in reason)
    assert len(reason) <= MAX_REASON_CHARACTERS
    assert clean_reason(reason) == reason
    assert len(orjson.dumps([[10**13, reason]] * 10)) <= 65_535
