"""What a server repeats of a secret is in no error of a Spark job, neither in its last words nor in what is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import sqlalchemy as sa

from app.config.bucket_settings import BucketId
from app.config.errors import REDACTED
from app.outbox import tables
from app.outbox.engine.clock import DatabaseClock
from app.outbox.sources.rows import SourceLeases
from tests.spark.conftest import Job, environment_of
from tests.support.builders import add_target, migrated, registry
from tests.support.pulled_events import Sources
from tests.support.scripted_store import served

SECRET = "hunter2/of+the=bucket"


@dataclass
class Parrot:
    """A server of S3, of Elasticsearch and of an Iceberg catalog that repeats a secret when it refuses a request."""

    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def parrot() -> Iterator[Parrot]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query)
            if "list-type" not in asked:
                reason = {"type": "security_exception", "reason": f"no {SECRET}"}
                self._answer(403, json.dumps({"error": reason | {"message": f"no {SECRET}", "code": 403}}))
            elif "delimiter" in asked or "max-keys" in asked:  # by which the job divides the bucket
                name = "<Name>images</Name><IsTruncated>false</IsTruncated>"
                self._answer(200, f"<ListBucketResult>{name}</ListBucketResult>")
            else:
                self._answer(403, f"<Error><Code>AccessDenied</Code><Message>no {SECRET}</Message></Error>")

        def do_POST(self) -> None:
            self.do_GET()

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler) as port:
        yield Parrot(port)


def bucket(parrot: Parrot) -> dict[str, str]:
    return {"endpoint": parrot.url, "bucket": "images", "access_key": "me", "secret_key": SECRET}


@pytest.mark.parametrize(
    "words",
    [
        ("reconcile", "run", "images", "--target", "elasticsearch:x"),
        ("backfill", "images", "--target", "webhook:x", "--no-versions"),
        ("scan", "images", "--no-versions"),
        ("watched-bucket", "bucket:x"),
        ("tables",),
    ],
    ids=lambda words: words[0],
)
def test_no_error_of_a_job_repeats_a_secret(
    job: Job, parrot: Parrot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str]
) -> None:
    monkeypatch.setattr("spark_jobs.runs.end_with_input", lambda: None)
    url = f"sqlite:///{tmp_path}/outbox.db"
    environment = environment_of(url, tmp_path) | {"BUCKETWIRE_TABLES_CATALOG": "rest"}
    environment |= {"BUCKETWIRE_TABLES_CATALOG_URI": parrot.url, "BUCKETWIRE_TABLES_CATALOG_CREDENTIAL": SECRET}
    with closing(migrated(url)) as database:
        registry(database).buckets.put(BucketId("images"), bucket(parrot))
        login = {"url": parrot.url, "username": "me", "password": SECRET, "index": "i", "format": "namespace"}
        add_target(database, type_name="elasticsearch", values=login)
        add_target(database)
        if words[0] == "watched-bucket":
            sources = Sources(database)
            source = sources.put("bucket", bucket(parrot) | {"versions": "off", "spark": "0 2 * * *"})
            lease = SourceLeases(database, 60_000).claim(sources.stored(source), DatabaseClock(database)())
            assert lease is not None
            words = (words[0], "--lease", lease.token, "--", words[1])
        code, out, err = job(environment, *words)
        assert (code, f"no {REDACTED}" in err) == (1, True), err
        with database.reading() as connection:
            kept: list[Any] = connection.execute(sa.select(tables.reconciliations.c.problem)).scalars().all()
    assert SECRET not in f"{out} {err} {kept}"
    if words[0] in ("reconcile", "backfill", "tables"):
        assert REDACTED in kept[0]
