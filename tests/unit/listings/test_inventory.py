"""The newest report of S3 Inventory in a folder is the newest that is complete."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from app.listings.inventory import manifest
from app.listings.limits import BadListing

BEGUN = 1_795_000_000_000


def write(folder: Path, name: str, *, checksum: str | None = "") -> None:
    """A manifest, with its own checksum unless another is given, or none."""
    (folder / name).mkdir(parents=True)
    text = json.dumps({
        "sourceBucket": name, "creationTimestamp": str(BEGUN), "fileFormat": "CSV", "fileSchema": "Bucket, Key",
        "files": [{"key": "data/a.csv.gz", "MD5checksum": "0" * 32}],
    }).encode()  # fmt: skip
    (folder / name / "manifest.json").write_bytes(text)
    if checksum is not None:
        (folder / name / "manifest.checksum").write_text(checksum or hashlib.md5(text).hexdigest())


def nowhere(bucket: str) -> None:
    raise AssertionError(bucket)


@pytest.mark.parametrize("end", ["", "/"])
def test_unfinished_reports_and_other_folders_are_passed_over(tmp_path: Path, end: str) -> None:
    for name in ("2026-11-19T01-00Z", "2026-11-20T01-00Z", "data", "hive"):
        write(tmp_path, name)
    write(tmp_path, "2026-11-21T01-00Z", checksum=None)
    (tmp_path / "2026-11-22T01-00Z").mkdir()
    found = manifest(f"{tmp_path}{end}", nowhere)
    assert found.location == f"{tmp_path}/2026-11-20T01-00Z/manifest.json"
    assert (found.bucket, found.begun) == ("2026-11-20T01-00Z", BEGUN)


def test_a_report_is_complete_when_its_manifest_is_written_but_not_before_it_was_begun(tmp_path: Path) -> None:
    write(tmp_path, "2026-11-20T01-00Z")
    file = tmp_path / "2026-11-20T01-00Z" / "manifest.json"
    for at, written in ((BEGUN + 5_000, BEGUN + 5_000), (BEGUN - 5_000, BEGUN)):
        os.utime(file, (at / 1000, at / 1000))
        assert manifest(str(file), nowhere).written == written


def test_a_report_was_begun_when_its_folder_says_if_its_manifest_was_written_later(tmp_path: Path) -> None:
    """S3 writes the same time into both, and Ceph the end of the report into its manifest."""
    for name, begun in (
        ("2026-11-18T11-06Z", BEGUN),
        ("2026-11-18T10-06Z", BEGUN - BEGUN % 60_000 - 3_600_000),
        ("2026-11-19T00-00Z", BEGUN),
        ("2026-13-18T10-06Z", BEGUN),
    ):
        write(tmp_path, name)
        assert manifest(str(tmp_path / name / "manifest.json"), nowhere).begun == begun, name


@pytest.mark.parametrize(
    ("names", "checksum", "words"),
    [
        ([], "", "it has no folder such as 2026-11-21T01-00Z"),
        (["data"], "", "it has no folder such as 2026-11-21T01-00Z"),
        (["2026-11-20T01-00Z"], None, "lacks manifest.json or manifest.checksum, also 2026-11-20T01-00Z"),
        (["2026-11-20T01-00Z"], "0" * 32, "does not match the manifest.checksum beside it"),
    ],
)
def test_a_folder_without_a_report_says_so(tmp_path: Path, names: list[str], checksum: str | None, words: str) -> None:
    for name in names:
        write(tmp_path, name, checksum=checksum)
    with pytest.raises(BadListing, match=words):
        manifest(str(tmp_path), nowhere)
    with pytest.raises(BadListing, match="cannot be read: No such file"):
        manifest(str(tmp_path / "none"), nowhere)
