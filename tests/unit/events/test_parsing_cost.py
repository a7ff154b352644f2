"""What a hostile body costs before it is refused: memory and processor time in proportion to the limits."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from app.events.parsing import BadEvents, Limits, Parsed, parse
from tests.support.captured import record
from tests.support.frontend_records import sns

pytestmark = pytest.mark.slow

# A child for each body, forked from a process that has imported what it needs: the import takes ten times as long.
# What is known of the peak is that process's own: one that pytest starts begins with the peak of pytest, which hides
# how much it grows.
_MEASURE = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from app.events.parsing import BadEvents, parse
def measure(before, unit, after, size, kind, mode):
    size <<= 20
    body = b"".join((before, unit * (size // len(unit)), after))
    headers = {"Content-Type": kind}
    began, known = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        parse(body, headers, now_ms=1, partial=mode == "partial")
        status = 200
    except BadEvents as error:
        status = error.status
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - known) >> 10
    print(status, grown, time.process_time() - began, flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        measure(*eval(line))
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(flush=True)
"""


@pytest.fixture(scope="module")
def measuring() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", _MEASURE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def cost(
    measuring: subprocess.Popen[str], before: bytes, unit: bytes, after: bytes, *, size: int, kind: str, mode: str
) -> tuple[int, int, float]:
    """Status, peak memory beside the body (MiB) and processor seconds of a body of `size` MiB that repeats a unit."""
    assert measuring.stdin is not None
    assert measuring.stdout is not None
    print(repr((before, unit, after, size, kind, mode)), file=measuring.stdin, flush=True)
    answer = measuring.stdout.readline()
    assert answer.strip(), "its process did not survive the body"
    status, grown, seconds = answer.split()
    return int(status), int(grown), float(seconds)


@pytest.mark.parametrize("mode", ["whole", "partial"])
@pytest.mark.parametrize(
    ("before", "unit", "after"),
    [
        (b"[", b"{},", b"{}]"),
        (b"[", b"1,", b"1]"),
        (b"[", b'"ab",', b"1]"),
        (b"[", b"[],", b"1]"),
        (b"[", b'{"a":' * 900 + b"1" + b"}" * 900 + b",", b"1]"),
        (b"[", b"[" * 900 + b"]" * 900 + b",", b"1]"),
        (b'{"Records":[', b"{},", b"{}]}"),
        (b"", b"12\n", b""),
        (b"", b"[]\n", b"[]"),
        (b"", b"{},\n", b""),
    ],
)
def test_a_body_of_very_many_values_is_refused_for_little(
    measuring: subprocess.Popen[str], before: bytes, unit: bytes, after: bytes, mode: str
) -> None:
    status, grown, seconds = cost(measuring, before, unit, after, size=12, kind="application/json", mode=mode)
    assert status in (400, 413)
    assert grown < (260 if unit == b'"ab",' else 120)  # 100 bytes for each of as many texts as a body may have values
    assert seconds < 3


@pytest.mark.parametrize(
    ("before", "unit", "after", "statuses"),
    [
        (b'{"a":1}', b"\n", b"1", (400,)),  # blank lines
        (b'{"a":1}\n', b" ", b"1", (400,)),
        (b'{"a":1}', b" \n", b"1", (400,)),
        (b'[{"a":"', b"0", b'"}]', (400,)),
        (b'[{"a":"', b"0123456789012345678901 ", b'"}]', (400,)),
    ],
)
def test_a_body_of_one_long_thing_is_read_in_a_moment(
    measuring: subprocess.Popen[str], before: bytes, unit: bytes, after: bytes, statuses: tuple[int, ...]
) -> None:
    status, grown, seconds = cost(measuring, before, unit, after, size=12, kind="application/x-ndjson", mode="partial")
    assert status in (200, *statuses)
    assert grown < 120
    assert seconds < 4


def take(body: Any, limits: Limits, *, partial: bool = True) -> Parsed:
    return parse(json.dumps(body).encode(), {}, now_ms=1, limits=limits, partial=partial)


def hidden(text: str) -> list[bytes]:
    """Envelopes that hold a text of which no bracket and no comma stands in the body as such."""
    encoded = {"specversion": "1.0", "data_base64": base64.b64encode(text.encode()).decode()}
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in text)
    return [json.dumps(sns("@")).replace("@", escaped).encode(), json.dumps(encoded).encode()]


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("text", ["[" + "{}," * 200_000 + "{}]", '[{"a":[' + "1," * 500_000 + "1]}]"])
def test_what_an_envelope_hides_is_counted_before_it_is_read(kind: int, text: str) -> None:
    body = hidden(text)[kind]
    assert body.count(b",") < 100
    for partial in (False, True):
        with pytest.raises(BadEvents, match=r"more than .* JSON") as caught:
            parse(body, {}, now_ms=1, limits=Limits(records=10), partial=partial)
        assert caught.value.status == 413


def test_the_refusal_names_the_limit_and_its_setting() -> None:
    with pytest.raises(BadEvents) as caught:
        take([{"a": [[]] * 200_000}], Limits(records=10))
    assert caught.value.status == 413
    assert "BUCKETWIRE_RECORD_LIMIT" in caught.value.problem
    assert "100000 JSON objects and arrays" in caught.value.problem
    with pytest.raises(BadEvents, match="more than 400000 JSON values") as caught:
        take([{"a": [1] * 500_000}], Limits(records=10))
    assert caught.value.status == 413


def test_one_record_may_hold_much() -> None:
    sent = record(1) | {"later": [{"a": [1, 2, 3]}] * 20_000}
    assert len(take([sent], Limits(records=1)).events) == 1


def test_no_more_refusals_are_listed_than_anybody_reads() -> None:
    parsed = take([{}] * 300 + [record(1)], Limits(refusals=100))
    assert (len(parsed.events), len(parsed.refused), parsed.more_refused) == (1, 100, 200)
    assert [bad.index for bad in parsed.refused] == list(range(100))


def test_an_array_that_is_too_long_is_refused_before_its_elements_are_looked_at() -> None:
    for body in ([{}] * 11, {"Records": [{}] * 11}, [{"Records": [{}] * 11}], [record(1), [1] * 3, *([1] * 9)]):
        with pytest.raises(BadEvents, match="more than 10 records") as caught:
            take(body, Limits(records=10), partial=False)
        assert caught.value.status == 413
