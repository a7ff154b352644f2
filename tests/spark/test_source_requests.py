"""The requests of a listing are counted, also those that are sent while what was counted is written."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import DatabaseUnavailable
from app.outbox.sources.rows import SourceLease
from app.outbox.sources.watched import WatchedBuckets
from tests.support.builders import migrated
from tests.support.watched_bucket import Known


def test_a_request_that_is_sent_while_others_are_written_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.listings.source_listing import Requests

    count, failures = WatchedBuckets.count_requests, [DatabaseUnavailable[0]("", None, Exception()), None]

    def counted(self: WatchedBuckets, lease: SourceLease, sent: int) -> None:
        requests.add()  # by another thread
        if failures and (failure := failures.pop(0)) is not None:
            raise failure
        count(self, lease, sent)

    url = f"sqlite:///{tmp_path}/outbox.db"
    with closing(migrated(url)) as database:
        known = Known(database)
        known.finish(began=1)
        requests = Requests(url, known.lease)
        monkeypatch.setattr(WatchedBuckets, "count_requests", counted)
        requests.add()
        for _ in range(2):
            requests.write()
        with database.reading() as connection:
            written = connection.execute(sa.select(tables.watched_buckets.c.requests)).scalar_one()
        assert (written, requests.sent) == (2, 1)
