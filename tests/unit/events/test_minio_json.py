from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from urllib.parse import quote_plus, unquote_plus

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events import minio_json

KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": [None, True, 0.5]}, '{"b":1,"a":[null,true,0.5]}'),
        ("<a href='x'>&</a>", r'''"\u003ca href='x'\u003e\u0026\u003c/a\u003e"'''),
        ("\u2028 \u2029", r'"\u2028 \u2029"'),
        ({"<": "é日🎉\u007f"}, '{"\\u003c":"é日🎉\u007f"}'),
        ('\b\f\n\r\t\x01"\\', r'"\b\f\n\r\t\u0001\"\\"'),
        ({"size": 2**64, "a": "<é"}, '{"size":18446744073709551616,"a":"\\u003cé"}'),
    ],
)
def test_json_is_spelt_as_go_spells_it(value: object, expected: str) -> None:
    assert minio_json.text(value) == expected


@pytest.mark.parametrize(
    "number",
    [
        0,
        1,
        -1,
        10**18 - 1,
        2**63 - 1,
        2**63,
        2**64 - 1,
        2**64,
        -(2**63),
        -(2**63) - 1,
        10**40,
        10**300,
        -(10**19),
        3 * 10**18,
    ],
)
@pytest.mark.parametrize("spelling", ['{"a":%d}', '{"a": %d}', "[%d]", "[1,%d]", "%d", '{"a":\n\t%d\r\n}'])
def test_integers_of_any_length_survive(number: int, spelling: str) -> None:
    text = spelling % number
    value = minio_json.load(text.encode())
    assert value == json.loads(text)
    assert str(number) in minio_json.text(value)


def test_digits_within_a_text_are_no_long_number() -> None:
    body = b'{"a":"%b","b":["x%b"],"c":"a-%b"}' % ((b"1234567890123456789012345",) * 3)
    assert not minio_json.holds_long_numbers(body)
    assert minio_json.holds_long_numbers(body[:-1] + b',"d":-1234567890123456789}')


@pytest.mark.parametrize("number", [b"1234567890123456789", b"-12345678901234567890123456789"])
def test_a_long_number_is_found_wherever_it_is_in_a_long_text(number: bytes) -> None:
    for at in range((1 << 16) - 40, (1 << 16) + 10):
        assert minio_json.holds_long_numbers(b'["' + b"x" * at + b'",' + number + b"]")
        assert not minio_json.holds_long_numbers(b'["' + b"x" * at + number + b'"]')
        assert not minio_json.holds_long_numbers(b'["' + b"x" * at + b'",' + number[:18] + b"]")


@pytest.mark.parametrize(
    ("body", "offset", "words"),
    [
        (b'{"a":1', 6, "unexpected end"),
        (b'{"a":}', 5, "unexpected character"),
        ('{"é":}'.encode(), 6, "unexpected character"),
        (b'{"a":"\xff"}', 6, "UTF-8"),
        (b'["\\ud800"]', 2, "surrogate"),
        (b"[NaN]", 1, "unexpected character"),
        (b"{} {}", 3, "unexpected content"),
        (b"[" + b"9" * 5000 + b"]", 1, "infinity"),
        (b"[" * 300 + b"9" * 20 + b"]" * 300, 0, "deep"),
    ],
)
def test_what_is_no_json_is_told_with_its_byte(body: bytes, offset: int, words: str) -> None:
    with pytest.raises(minio_json.BadJson, match=words) as caught:
        minio_json.load(body)
    assert caught.value.offset == offset


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_every_value_comes_back_from_its_text(value: object) -> None:
    text = minio_json.text(value)
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")
    assert minio_json.load(text.encode()) == value


@given(st.dictionaries(KEYS, JSON, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_change_the_digest(record: dict[str, object], chance: random.Random) -> None:
    members = list(record.items())
    chance.shuffle(members)
    assert minio_json.digest(dict(members)) == minio_json.digest(record)


def test_the_digest_is_blake2b_of_sorted_compact_json() -> None:
    # b2sum -l 128 of {"a":1,"b":"é<"}: an id must never change, or events already in a log would come twice.
    assert minio_json.digest({"b": "é<", "a": 1}) == "aface5c49f9cd771a47b1def70d1a480"


@pytest.mark.parametrize("depth", [1, 2, 32, 33, 1000])
@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_nesting_is_counted_exactly(depth: int, opening: str) -> None:
    closing = "}" if opening[0] == "{" else "]"
    value = orjson.loads(opening * depth + "1" + closing * depth)
    assert minio_json.deeper_than(value, depth - 1)
    assert not minio_json.deeper_than(value, depth)


def test_what_is_nested_too_deep_to_be_written_is_said_to_be() -> None:
    value = orjson.loads("[" * 900 + "]" * 900)
    with pytest.raises(minio_json.TooDeep):
        minio_json.text(value)
    with pytest.raises(minio_json.TooDeep):
        minio_json.digest(value)


@pytest.mark.parametrize(
    ("key", "encoded"),
    [
        ("a.txt", "a.txt"),
        ("a/b", "a%2Fb"),
        ("with space", "with+space"),
        ("a+b", "a%2Bb"),
        ("100%", "100%25"),
        ("%2F", "%252F"),
        ("~-_.", "~-_."),
        ("*'()!", "%2A%27%28%29%21"),
        ("dir a/myphoto+é &<1>.jpg", "dir+a%2Fmyphoto%2B%C3%A9+%26%3C1%3E.jpg"),
        ("🎉\n\0", "%F0%9F%8E%89%0A%00"),
    ],
)
def test_a_key_in_a_record_is_form_encoded(key: str, encoded: str) -> None:
    assert minio_json.encode_key(key) == encoded
    assert minio_json.decode_key(encoded) == key


@given(KEYS)
def test_every_key_survives_the_round_trip(key: str) -> None:
    encoded = minio_json.encode_key(key)
    assert encoded.isascii()
    assert minio_json.decode_key(encoded) == key


@given(st.text(st.sampled_from("ab/%2Ff+ é0"), max_size=12))
def test_whatever_decodes_decodes_as_the_standard_library_does(encoded: str) -> None:
    try:
        key = minio_json.decode_key(encoded)
    except minio_json.BadKey:
        return
    assert key == unquote_plus(encoded)
    assert minio_json.decode_key(quote_plus(key, safe="/")) == key  # as AWS spells it


@pytest.mark.parametrize("encoded", ["%", "a%", "%2", "%zz", "%%41", "%2g", "%-1", "% 1", "%é", "a%2Fb%"])
def test_a_stray_percent_does_not_decode(encoded: str) -> None:
    with pytest.raises(minio_json.BadKey, match="stray %"):
        minio_json.decode_key(encoded)


@pytest.mark.parametrize("encoded", ["%FF", "%C3", "%ED%A0%80", "a%2F%80"])
def test_bytes_that_are_no_utf8_do_not_decode(encoded: str) -> None:
    with pytest.raises(minio_json.BadKey, match="UTF-8"):
        minio_json.decode_key(encoded)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("1970-01-01T00:00:00.000Z", 0),
        ("2026-11-21T00:33:56.082Z", 1795221236082),
        ("2026-11-21T00:33:56Z", 1795221236000),
        ("2026-11-21T00:33:56.082999Z", 1795221236082),
        ("2026-11-21T00:33:56.08Z", 1795221236080),
        ("2026-11-21 00:33:56.082Z", 1795221236082),
        ("2026-11-21 00:33:56.082", 1795221236082),
        ("2026-11-21 00:33:56", 1795221236000),
        ("2026-11-21T00:33:56.082", 1795221236082),
        ("2026-11-21 02:33:56.082 +0200", 1795221236082),
        ("2026-11-21 02:33:56.082+02:00", 1795221236082),
        ("2026-11-21t00:33:56.082z", 1795221236082),
        ("2026-11-21T00:33:56.082123456Z", 1795221236082),
        ("2026-11-21T02:33:56.082+02:00", 1795221236082),
        ("2026-11-20T16:33:56-08:00", 1795221236000),
        ("9999-12-31T23:59:59.999Z", 253402300799999),
    ],
)
def test_times_are_read(moment: str, expected: int) -> None:
    assert minio_json.milliseconds(moment) == expected


@pytest.mark.parametrize(
    "moment",
    [
        "",
        "now",
        "1795221236",
        "2026-11-21",
        "2026-11-21  00:33:56.082Z",
        "2026-11-21 00:33:56.082 UTC",
        "2026-11-21T00:33:56,082Z",
        "2026-11-21T24:33:56.082Z",
        "2026-13-21T00:33:56.082Z",
        "2026-W47-6T00:33:56.082Z",
        "20261121T003356.082+0000",
        "2026-11-21T003356.08200Z",
        "2026-11-21T00:33:56.082+99:00",
        "2026-11-21T00:33:5６.082Z",
        "1969-12-31T23:59:59.999Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "2026-11-21T00:33:56.082Z\n",
    ],
)
def test_what_is_no_time_is_none(moment: str) -> None:
    assert minio_json.milliseconds(moment) is None


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001 (Hypothesis wants naive bounds)
def test_a_time_survives_the_round_trip(moment: datetime) -> None:
    found = minio_json.milliseconds(moment.isoformat().replace("+00:00", "Z"))
    assert found is not None
    assert minio_json.milliseconds(minio_json.timestamp(found)) == found
    assert len(minio_json.timestamp(found)) == 24
