"""`bucketwire bucket …` says where buckets are, and keeps their secrets."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from app.cli_common.context import ServiceContext
from app.config.bucket_settings import BucketSettings
from app.outbox import tables
from app.outbox.engine.database import Database
from tests.integration.cli.conftest import Cli

SECRET = "hush-hush-9f3"
SET = ("bucket", "set", "ceph:images", "endpoint=https://ceph.example:8443", "access_key=AK")
DECLARED = """
buckets:
  ceph:images: {endpoint: "https://ceph.example:8443", access_key: AK, secret_key: "*redacted*", bucket: pictures}
  docs: {region: eu-central-1}
"""


def access(name: str) -> BucketSettings:
    """How a job of this service lists a bucket."""
    with closing(ServiceContext()) as service:
        return service.registry.buckets.access(name)


def test_a_bucket_has_settings_without_its_secret_being_shown(cli: Cli, database: Database) -> None:
    assert "no bucket has settings" in cli("bucket", "ls").out
    assert "bucket:ceph:images: new" in cli(*SET, f"secret_key={SECRET}", "--dry-run").out
    assert cli("bucket", "ls", "--json").json == []
    cli(*SET, f"secret_key={SECRET}")
    changed = cli("bucket", "set", "ceph:images", "region=eu-central-1").out
    assert "+ region=eu-central-1" in changed
    shown = cli("bucket", "show", "ceph:images", "--json").json
    assert shown["settings"] == {
        "endpoint": "https://ceph.example:8443", "access_key": "AK", "secret_key": "*redacted*",
        "region": "eu-central-1",
    }  # fmt: skip
    assert shown["name_in_storage"] == "images"
    with database.reading() as connection:
        [row] = connection.execute(tables.bucket_settings.select()).all()
    assert SECRET not in row.settings
    found = access("ceph:images")
    assert (found.secret_key, found.endpoint) == (SECRET, "https://ceph.example:8443")
    assert SECRET not in repr(found)
    assert access("others") == BucketSettings()
    for words in (["bucket", "show", "ceph:images"], ["bucket", "ls"], ["audit", "--json"]):
        assert SECRET not in cli(*words).out
    assert [entry["action"] for entry in cli("audit", "--json").json] == ["bucket.set", "bucket.set"]
    cli("bucket", "rm", "ceph:images")
    assert cli("bucket", "show", "ceph:images").code == 1
    assert cli("audit", "--json").json[0]["action"] == "bucket.unset"


@pytest.mark.parametrize(
    ("which", "pairs", "said"),
    [
        ("images", ["endpont=http://x"], "did you mean endpoint?"),
        ("images", ["access_key=AK"], "secret_key: is missing"),
        ("images", ["endpoint=http://u:p@x"], "has a login"),
        ("images", ["endpoint=http://x", "tls_ca=/ca.pem"], "has no effect without TLS"),
        ("images", ["access_key=AK", "secret_key=file:/etc/passwd"], "outside the folder of secrets"),
        ("images", ["bucket=../x"], "is not the name of a bucket"),
        ("images", ["region="], "has no settings"),
        ("a/b", ["region=x"], "is not the name of a bucket"),
        ("*", ["region=x"], "is not the name of a bucket"),
    ],
)
def test_settings_that_cannot_be_are_refused(cli: Cli, which: str, pairs: list[str], said: str) -> None:
    refused = cli("bucket", "set", which, *pairs)
    assert refused.code in (1, 2)
    assert said in " ".join(refused.err.split())
    assert cli("bucket", "ls", "--json").json == []


def test_settings_are_declared_kept_and_pruned(cli: Cli, tmp_path: Path) -> None:
    cli(*SET, f"secret_key={SECRET}")
    file = tmp_path / "bucketwire.yaml"
    file.write_text(DECLARED)
    applied = cli("apply", "-f", str(file)).out
    assert "bucket:ceph:images: changed" in applied
    assert "bucket:docs: new" in applied
    assert "no changes" in cli("apply", "-f", str(file)).out
    found = access("ceph:images")
    assert (found.secret_key, found.name_in_storage("ceph:images")) == (SECRET, "pictures")
    file.write_text("rules: []")
    assert "2 buckets" in cli("apply", "-f", str(file)).out
    assert "bucket:docs: removed" in cli("apply", "-f", str(file), "--prune").out
    assert cli("bucket", "ls", "--json").json == []
