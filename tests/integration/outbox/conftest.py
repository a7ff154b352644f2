"""A fresh outbox on each kind of database."""

from collections.abc import Iterator

import pytest

from app.outbox.engine.database import Database
from tests.support.builders import migrated


@pytest.fixture
def database(outbox_url: str) -> Iterator[Database]:
    """An empty log of four partitions."""
    opened = migrated(outbox_url, partitions=4)
    yield opened
    opened.close()
