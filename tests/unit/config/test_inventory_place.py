"""Where a watched bucket's inventory is: what is taken, and what a refusal says."""

from __future__ import annotations

import pytest

from app.config.errors import BadSettings
from app.config.fields.aws import Catalog, catalog_of
from app.config.sources.bucket import BucketSourceSettings
from app.config.target_settings import load

ARN = "arn:aws:s3tables:eu-central-1:111122223333:bucket/aws-s3"
PLACE = {"endpoint": "http://127.0.0.1:9000", "bucket": "photos", "spark": "0 8 * * *"}


@pytest.mark.parametrize(
    ("place", "catalog"),
    [
        ("s3://reports/daily/photos/all/", None),
        ("s3://reports/a b/ü/2026-11-21T01-00Z/manifest.json", None),
        ("/mnt/reports/", None),
        (ARN, Catalog("https://s3tables.eu-central-1.amazonaws.com/iceberg", ARN, "eu-central-1")),
        ("http://host:8181?warehouse=w", Catalog("http://host:8181", "w")),
        ("https://host/iceberg", Catalog("https://host/iceberg")),
    ],
)
def test_reports_and_catalogs_are_told_apart(place: str, catalog: Catalog | None) -> None:
    settings = load(BucketSourceSettings, PLACE | {"inventory": place, "access_key": "a", "secret_key": "secret"})
    assert settings.inventory == place
    assert catalog_of(settings.inventory) == catalog


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"inventory": "reports/all"}, "is not the place of an inventory; write the folder of its reports"),
        ({"inventory": "s3:/reports"}, "is not the place of an inventory"),
        ({"inventory": "s3://reports"}, "is not the place of an inventory"),
        ({"inventory": "s3://reports/a\nb"}, "is not the place of an inventory"),
        ({"inventory": "http://me:secret@host/"}, "has a login or another ?query than warehouse; leave it out"),
        ({"inventory": "http://host/?token=x"}, "has a login or another ?query than warehouse"),
        (
            {"inventory": "s3://reports/x/", "spark": ""},
            "is read by Spark alone; give the times at which it reads it",
        ),
        ({"inventory": ARN}, "access_key: is missing; give the keys that may read the tables of S3 Metadata"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_would_be_right(values: dict[str, str], words: str) -> None:
    with pytest.raises(BadSettings) as caught:
        load(BucketSourceSettings, PLACE | values)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
