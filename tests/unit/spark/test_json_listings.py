"""Listings of `aws s3api list-objects-v2` and `rclone lsjson`: exactly their entries, or they are refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.listings.limits import BadListing
from spark_jobs.listings import listing
from spark_jobs.listings.listing import AWS, RCLONE, Place, aws_entries, convert, form_of, rclone_entries

TIME = "2026-11-21T07:02:48+00:00"
IMAGES = Place(frozenset({"images", "ceph:images"}))
STATED = Place(IMAGES.buckets, stated="images")
KEYS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0%+"), min_size=1, max_size=6), unique=True)
Document = dict[str, Any]


def an_object(key: str) -> Document:
    return {"Key": key, "LastModified": TIME, "ETag": '"e"', "Size": 3, "ChecksumAlgorithm": ["CRC32"]}


def pages(keys: Sequence[str], size: int = 2) -> list[Document]:
    """As `aws s3api list-objects-v2 --no-paginate` prints each."""
    parts = [list(keys[at : at + size]) for at in range(0, len(keys), size)] or [[]]
    found = []
    for number, part in enumerate(parts):
        page: Document = {"IsTruncated": number + 1 < len(parts), "Contents": [an_object(key) for key in part]}
        page |= {"Name": "images", "Prefix": "", "EncodingType": "url", "KeyCount": len(part)}
        page |= {"ContinuationToken": f"t{number}"} if number else {}
        found.append(page | ({"NextContinuationToken": f"t{number + 1}"} if page["IsTruncated"] else {}))
    return found


def text_of(documents: Sequence[Document], indent: int | None = 4) -> str:
    return "\n".join(json.dumps(document, indent=indent) for document in documents) + "\n"


def listed(text: str, place: Place = IMAGES) -> list[str]:
    return [entry["key"] for entry in aws_entries(io.StringIO(text), "x.json", place)]


@given(KEYS, st.integers(1, 4), st.sampled_from([None, 4]), st.integers(1, 50))
def test_pages_are_the_whole_listing_however_they_are_read(
    keys: list[str], size: int, indent: int | None, chunk: int
) -> None:
    keys = sorted(keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_CHUNK", chunk)
        assert listed(text_of(pages(keys, size), indent)) == keys
        whole = {"Contents": list(map(an_object, keys)), "RequestCharged": None}
        assert listed(text_of([whole], indent), STATED) == keys


@given(st.sets(st.text("ab/é", min_size=1, max_size=4), min_size=1), st.data())
def test_a_listing_that_was_cut_off_anywhere_is_refused(keys: set[str], data: st.DataObject) -> None:
    text = text_of(pages(sorted(keys))).rstrip()
    end = data.draw(st.integers(1, len(text) - 1))
    with pytest.raises(BadListing):
        listed(text[:end])


WRONG: Mapping[str, tuple[Callable[[list[Document]], Any], str]] = {
    "another bucket": (lambda found: found[0].update(Name="others"), "of the bucket 'others'"),
    "a prefix": (lambda found: found[0].update(Prefix="b/"), "the keys below 'b/' only"),
    "folders": (lambda found: found[0].update(CommonPrefixes=[{"Prefix": "b/"}]), "folders without their objects"),
    "a later part": (lambda found: found[0].update(StartAfter="a"), "begins after 'a'"),
    "the last page": (lambda found: found.pop(), "says that more follow"),
    "a page between": (lambda found: found.pop(1), "is not the one that follows"),
    "no token": (lambda found: found[0].pop("NextContinuationToken"), "does not say what follows"),
    "another listing": (lambda found: found.append(pages(["z"])[0]), "another listing after one that ended"),
    "the order": (lambda found: found[0]["Contents"].reverse(), "not S3's order"),
    "an entry": (lambda found: found[0]["Contents"].pop(), "has 1 of its 2 objects"),
    "a size": (lambda found: found[0]["Contents"][0].pop("Size"), "an entry without Size"),
    "--max-items": (lambda found: found[-1].update(NextToken="t"), "cut off: it ends with a NextToken"),
    "something else": (lambda found: found[0].update(Versions=[{}]), "not of `aws s3api list-objects-v2`"),
    "perhaps encoded": (lambda found: found[-1]["Contents"].append(an_object("z%2F")), "whether its keys are encoded"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "reason"), WRONG.values(), ids=WRONG)
def test_pages_that_are_not_the_whole_listing_are_refused(spoil: Callable[[list[Document]], Any], reason: str) -> None:
    found = pages("abcdef")
    spoil(found)
    with pytest.raises(BadListing) as refused:
        listed(text_of(found))
    assert reason in str(refused.value)


def test_of_what_a_listing_is_has_to_be_said_where_it_does_not_say_it() -> None:
    whole = text_of([{"Contents": [an_object("a/1")], "Prefix": "a/"}])
    with pytest.raises(BadListing, match="say it: --listing-of"):
        listed(whole)
    below = Place(IMAGES.buckets, prefix="a/1", stated="images/a/")
    assert listed(whole, below) == ["a/1"]
    with pytest.raises(BadListing, match="give --prefix"):
        listed(whole, STATED)
    for stated, reason in (("others", "of the bucket 'others'"), ("images/b/", "below 'b/' only")):
        with pytest.raises(BadListing, match=reason):
            Place(IMAGES.buckets, stated=stated).check_statement("x.json")


def of_rclone(*paths: str, folders: Sequence[str] = ()) -> str:
    entries = [{"Path": path, "Name": path, "Size": 3, "ModTime": "2026-11-21T07:02:48.72Z", "IsDir": False}
               for path in paths]  # fmt: skip
    entries += [{"Path": path, "Name": path, "Size": 0, "ModTime": TIME, "IsDir": True} for path in folders]
    return "[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n"


def test_a_listing_of_rclone_has_its_keys_below_the_folder_that_was_listed() -> None:
    text = of_rclone("a", "f/b\n%", folders=["f"])
    found = [*rclone_entries(io.StringIO(text), "x.json", STATED)]
    assert [(entry["key"], entry["etag"], entry["size"]) for entry in found] == [("a", None, 3), ("f/b\n%", None, 3)]
    below = Place(IMAGES.buckets, prefix="dir/", stated="images/dir")
    assert [entry["key"] for entry in rclone_entries(io.StringIO(text), "x.json", below)] == ["dir/a", "dir/f/b\n%"]


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        (of_rclone("a"), IMAGES, "say it: --listing-of"),
        (of_rclone("a", folders=["f"]), STATED, "lsjson -R"),
        (of_rclone("f/a", folders=["f", "f/g"]), STATED, "lsjson -R"),
        (of_rclone("a", "b")[:-5], STATED, "cut off, or no JSON"),
        (of_rclone("a") + of_rclone("b"), STATED, "not one list"),
        ('[{"Name": "a"}]', STATED, "without a Path"),
        (of_rclone("a").replace('"Size": 3', '"Size": -1'), STATED, "an entry without Size"),
    ],
)
def test_what_is_not_all_of_rclones_list_is_refused(text: str, place: Place, reason: str) -> None:
    with pytest.raises(BadListing, match=reason):
        list(rclone_entries(io.StringIO(text), "x.json", place))


def test_a_form_is_recognised_by_its_beginning(tmp_path: Path) -> None:
    file, lines = tmp_path / "listing", tmp_path / "lines"
    mc = json.dumps({"status": "success", "type": "file", "key": "a"})
    for text, form in ((text_of(pages("ab")), AWS), (text_of(pages("ab"), None), AWS), (of_rclone("a"), RCLONE),
                       (mc, ""), ("", "")):  # fmt: skip
        file.write_text(text)
        assert form_of(str(file)) == form, text
    assert form_of(str(tmp_path)) == form_of("s3a://bucket/listing") == ""
    file.write_text(text_of(pages("ab")))
    convert(str(file), AWS, IMAGES, lines)
    assert [json.loads(line)["key"] for line in lines.read_text().splitlines()] == ["a", "b"]
    for empty, form in (("[\n]\n", RCLONE), (text_of([{"RequestCharged": None, "Name": "images"}]), AWS)):
        file.write_text(empty)
        with pytest.raises(BadListing, match="has no entries"):
            convert(str(file), form, STATED, lines)
    file.write_bytes(b'[{"Path": "\xff"}]')
    with pytest.raises(BadListing, match="not text in UTF-8"):
        convert(str(file), RCLONE, STATED, lines)
