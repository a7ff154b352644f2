from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events import names
from app.events.names import ContentChange, content_change
from app.events.order import MAX_SEQUENCER_CHARACTERS, comparable, from_time, states_content

HEX = st.text(st.sampled_from("0123456789abcdefABCDEF"), max_size=24)


@pytest.mark.parametrize(
    ("sequencer", "expected"),
    [
        ("18E9E833E5D35CED", "18E9E833E5D35CED"),
        ("0055aed6dcd90281e5", "0055AED6DCD90281E5"),
        ("18E9E833E5D35C00", "18E9E833E5D35C"),
        ("", ""),
        ("0", ""),
        ("xyz", ""),
        ("18E9 ", ""),
        ("18E9\n", ""),
        ("１８", ""),
    ],
)
def test_a_sequencer_is_made_comparable(sequencer: str, expected: str) -> None:
    assert comparable(sequencer) == expected
    assert comparable(expected) == expected


@given(HEX, HEX)
def test_comparing_texts_is_the_rule_of_padding_on_the_right(one: str, other: str) -> None:
    longest = max(len(one), len(other))
    padded = one.upper().ljust(longest, "0"), other.upper().ljust(longest, "0")
    assert (comparable(one) < comparable(other)) == (padded[0] < padded[1])
    assert (comparable(one) == comparable(other)) == (padded[0] == padded[1])


STATING = [
    "s3:ObjectCreated:Put",
    "s3:ObjectCreated:Post",
    "s3:ObjectCreated:Copy",
    "s3:ObjectCreated:CompleteMultipartUpload",
    "s3:ObjectRemoved:DeleteMarkerCreated",
    "s3:ObjectRemoved:DeleteAllVersions",
    "s3:LifecycleDelMarkerExpiration:Delete",
    "s3:LifecycleExpiration:DeleteMarkerCreated",
    "s3:ObjectLifecycle:Expiration:Current",
    "s3:ObjectLifecycle:Expiration:DeleteMarker",
    "s3:ObjectSynced:Create",
    "s3:Replication:Create",
    "s3:ObjectSynced:DeletionMarkerCreated",
    "s3:Replication:DeletionMarkerCreated",
]
STATING_WITHOUT_VERSION = [
    "s3:ObjectRemoved:Delete",
    "s3:LifecycleExpiration:Delete",
    "s3:ObjectLifecycle:Expiration:NonCurrent",
    "s3:ObjectLifecycle:Expiration:Noncurrent",
    "s3:ObjectSynced:Delete",
    "s3:Replication:Delete",
]


@pytest.mark.parametrize("name", sorted(names.KNOWN))
def test_only_what_changes_the_newest_content_states_it(name: str) -> None:
    assert states_content(name, "") == (name in STATING + STATING_WITHOUT_VERSION)
    assert states_content(name, "null") == (name in STATING + STATING_WITHOUT_VERSION)
    assert states_content(name, "a31dcea0-1b12-45b5-8f8c-187894ce3265") == (name in STATING)


@pytest.mark.parametrize("name", ["", "s3:ObjectCreated:", "s3:New:Put", "ObjectCreated:Put", "*"])
def test_an_unknown_name_of_no_family_says_nothing_of_the_content(name: str) -> None:
    assert content_change(name) is ContentChange.NOTHING
    assert not states_content(name, "")


def test_a_time_that_is_too_late_and_a_long_rest_keep_to_the_width_that_is_stored() -> None:
    assert from_time(99_999_999_999 * 10**9) == "F" * 16
    assert len(from_time(1, "A" * 64)) == MAX_SEQUENCER_CHARACTERS
