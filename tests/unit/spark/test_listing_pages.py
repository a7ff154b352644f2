"""A listing of S3 is complete, or it is refused: pages of model servers, right and wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import example, given
from hypothesis import strategies as st

from app.listings.limits import BadListing
from app.listings.pages import is_bound, pages
from spark_jobs.listings.named_keys import newest_entry
from spark_jobs.listings.s3_listing import between

ENDPOINT = "http://s3.example.com"
ALPHABET = "a/-.~é\ud7ff\ue000\uffff\U0001f600\U0010ffff"
KEYS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=25, unique=True)
Order = Callable[[str], Any]
Answer = dict[str, Any]


def by_utf16(key: str) -> bytes:
    return key.encode("utf-16-be")


class Server:
    """Lists a bucket in pages of three, in an order of its own; `spoil` may change each answer."""

    ignores_prefix = ignores_size = False

    def __init__(
        self, keys: Sequence[str], order: Order = str, *, versioned: bool = False,
        spoil: Callable[[Answer], Answer] = lambda answer: answer,
    ) -> None:  # fmt: skip
        self.meta = SimpleNamespace(endpoint_url=ENDPOINT)
        self._keys, self._order, self._spoil = sorted(keys, key=order), order, spoil
        self._versioned = versioned

    def list_objects_v2(
        self, Bucket: str, StartAfter: str = "", ContinuationToken: str = "", Prefix: str = "",  # noqa: N803 - boto3's
        MaxKeys: int = 3,  # noqa: N803 - as above
    ) -> Answer:  # fmt: skip
        page, rest = self._page(ContinuationToken or StartAfter, Prefix, MaxKeys)
        entries = [{"Key": key, "Size": 1} for key in page]
        answer: Answer = {"Name": Bucket, "IsTruncated": bool(rest), "Contents": entries}
        if rest:
            answer["NextContinuationToken"] = page[-1]
        return self._spoil(answer)

    def list_object_versions(
        self, Bucket: str, KeyMarker: str = "", VersionIdMarker: str = "", Prefix: str = "",  # noqa: N803 - as above
        MaxKeys: int = 3,  # noqa: N803 - as above
    ) -> Answer:  # fmt: skip
        page, rest = self._page(KeyMarker, Prefix, MaxKeys)
        versions = [{"Key": key, "VersionId": VersionIdMarker, "Size": 1} for key in page]
        answer: Answer = {"Name": Bucket, "IsTruncated": bool(rest), "Versions": versions[::2]}
        answer["DeleteMarkers"] = versions[1::2]
        if rest:
            answer |= {"NextKeyMarker": page[-1], "NextVersionIdMarker": "1"}
        return self._spoil(answer)

    def _page(self, after: str, prefix: str, size: int) -> tuple[list[str], list[str]]:
        left = [key for key in self._keys if not after or self._order(key) > self._order(after)]
        left = [key for key in left if self.ignores_prefix or key.startswith(prefix)]
        size = 3 if self.ignores_size else size
        return left[:size], left[size:]


def listed(server: Server, after: str = "", *, versioned: bool = False, prefix: str = "") -> list[str]:
    found: list[str] = []
    for page in pages(server, "images", after, versioned=versioned, prefix=prefix):
        found += [entry["Key"] for kind in ("Contents", "Versions", "DeleteMarkers") for entry in page.get(kind, ())]
    return found


def listed_or_refused(
    server: Server, after: str, *, versioned: bool = False, prefix: str = ""
) -> list[str] | None:  # fmt: skip
    try:
        return listed(server, after, versioned=versioned, prefix=prefix)
    except BadListing as error:
        found = str(error)
    assert "which is not S3's order" in found
    assert ENDPOINT in found
    return None


@given(KEYS, KEYS, st.integers(1, 5), st.sampled_from([str, by_utf16]), st.booleans(), st.text(ALPHABET, max_size=2))
def test_ranges_are_all_keys_below_a_prefix_whatever_the_servers_order_or_it_is_refused(
    keys: list[str], sample: list[str], tasks: int, order: Order, versioned: bool, prefix: str
) -> None:
    server = Server(keys, order, versioned=versioned)
    keys = [key for key in keys if key.startswith(prefix)]
    found: list[str] = []
    for after, until in between(sample, tasks):
        assert not after or is_bound(after)
        read = listed_or_refused(server, after, versioned=versioned, prefix=prefix)
        if read is None:
            assert order is by_utf16
            return
        found += [key for key in read if key > after and (until is None or key <= until)]
    assert sorted(found) == sorted(keys)


@given(KEYS, st.text(ALPHABET, max_size=4), st.sampled_from([str, by_utf16]))
def test_no_key_after_any_other_is_left_out(keys: list[str], after: str, order: Order) -> None:
    found = listed_or_refused(Server(keys, order), after)
    if found is None:
        assert order is by_utf16
    else:
        assert {key for key in keys if key > after} <= set(found)


def without(name: str) -> Callable[[Answer], Answer]:
    return lambda answer: {key: value for key, value in answer.items() if key != name}


def with_(**members: Any) -> Callable[[Answer], Answer]:
    return lambda answer: answer | members


WRONG: Mapping[str, tuple[bool, Callable[[Answer], Answer], str]] = {
    "no token": (False, without("NextContinuationToken"), "does not say what follows (NextContinuationToken)"),
    "no marker": (True, without("NextKeyMarker"), "does not say what follows (NextKeyMarker)"),
    "no end": (False, without("IsTruncated"), "does not say whether it is the last one"),
    "always the same": (False, with_(NextContinuationToken="b", IsTruncated=True), "is not S3's order"),
    "the same marker": (True, with_(NextKeyMarker="b", IsTruncated=True), "is that page again"),
    "never an end": (False, with_(Contents=[], IsTruncated=True, NextContinuationToken="b"), "is that page again"),
    "another bucket": (False, with_(Name="other"), "a listing of the bucket 'other'"),
    "another bucket's versions": (True, with_(Name="other"), "a listing of the bucket 'other'"),
}  # fmt: skip


@pytest.mark.parametrize(("versioned", "spoil", "reason"), WRONG.values(), ids=WRONG)
def test_pages_that_are_not_the_whole_listing_are_refused(
    versioned: bool, spoil: Callable[[Answer], Answer], reason: str
) -> None:
    server = Server("abcdefgh", versioned=versioned, spoil=spoil)
    with pytest.raises(BadListing) as refused:
        listed(server, versioned=versioned)
    assert reason in str(refused.value)


@pytest.mark.parametrize("name", ["images", "acme:images"])
def test_a_listing_of_a_tenants_bucket_has_its_name_with_or_without_the_tenant(name: str) -> None:
    """Ceph answers with the name alone."""
    found = pages(Server("abcdefgh", spoil=with_(Name=name)), "acme:images", versioned=False)
    assert len([entry for page in found for entry in page["Contents"]]) == 8
    with pytest.raises(BadListing, match="a listing of the bucket 'other:images'"):
        list(pages(Server("a", spoil=with_(Name="other:images")), "acme:images", versioned=False))


@pytest.mark.parametrize("versioned", [False, True])
def test_a_server_that_ignores_the_prefix_is_refused(versioned: bool) -> None:
    server = Server(["a/1", "b/1"], versioned=versioned)
    assert listed(server, versioned=versioned, prefix="b/") == ["b/1"]
    server.ignores_prefix = True
    with pytest.raises(BadListing, match="lists 'a/1', which is not below the prefix 'b/'"):
        listed(server, versioned=versioned, prefix="b/")


@given(KEYS, st.text(ALPHABET, min_size=1, max_size=3), st.sampled_from([str, by_utf16]), st.booleans(), st.booleans())
@example(["a\ue000", "a\U0001f600"], "a", by_utf16, False, True)
def test_a_single_key_is_found_if_it_is_there_whatever_begins_with_it(
    keys: list[str], key: str, order: Order, versioned: bool, ignores_size: bool
) -> None:
    server = Server(keys, order, versioned=versioned)
    server.ignores_size = ignores_size
    for asked in (key, *keys):
        found = newest_entry(server, "images", asked, versioned=versioned)
        assert (found and found["Key"]) == (asked if asked in keys else None)


def test_a_key_that_no_object_can_have_is_not_asked_for() -> None:
    for key in ("", "k" * 1025, "a\0b", "\ud800"):
        assert newest_entry(None, "images", key, versioned=False) is None


@pytest.mark.parametrize(("key", "status"), [("a", 400), ("../a", 403)])
def test_a_refusal_is_not_taken_for_the_lack_of_an_object(key: str, status: int) -> None:
    def refuse(_: Answer) -> Answer:
        raise ClientError({"ResponseMetadata": {"HTTPStatusCode": status}}, "ListObjectsV2")

    with pytest.raises(ClientError):
        newest_entry(Server([], spoil=refuse), "images", key, versioned=False)


def test_pages_without_entries_end() -> None:
    tokens = iter(range(10**6))

    def endless(answer: Answer) -> Answer:
        return answer | {"Contents": [], "IsTruncated": True, "NextContinuationToken": str(next(tokens))}

    with pytest.raises(BadListing, match="pages in a row have no entries"):
        listed(Server("ab", spoil=endless))


def test_no_server_is_asked_to_begin_at_what_is_no_key() -> None:
    wrong = ("../k", "a/./b", "a//b", "/a", "k" * 1025, "\0", "a\nb", "\U0001f600", "\ue000", "")
    assert between(["b", *wrong], 50) == [("", "b"), ("b", None)]
    assert all(map(is_bound, ("a", "a/", "a b/日本", "k" * 1024)))


def test_markers_that_go_round_among_the_versions_of_a_key_end() -> None:
    markers = itertools.cycle(["v1", "v2", "v3"])

    def endless(answer: Answer) -> Answer:
        following = {"IsTruncated": True, "NextKeyMarker": "a", "NextVersionIdMarker": next(markers)}
        return answer | {"Versions": [{"Key": "a", "Size": 1}], "DeleteMarkers": []} | following

    with pytest.raises(BadListing, match="the page after 'a' is that page again"):
        listed(Server("a", versioned=True, spoil=endless), versioned=True)
