"""A real API: gunicorn with its processes and threads on a fresh port, over a real database."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet

from app.api.server import command
from app.outbox import models as m
from app.outbox.database import Database
from app.outbox.tokens import Tokens
from tests import services
from tests.builders import migrated


@dataclass(eq=False)
class Api(services.Server):
    """The API as `gunicorn` serves it."""

    name: ClassVar[str] = "api"
    database_url: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """It is ours and always there."""

    def prepare(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def argv(self) -> Sequence[str | Path]:
        return [sys.executable, "-m", *command()]

    def env(self) -> Mapping[str, str]:
        return {
            "BUCKETWIRE_DATABASE_URL": self.database_url,
            "BUCKETWIRE_BROKER_URL": f"redis://{services.LOOPBACK}:9/0",  # nobody listens: it must not matter
            "BUCKETWIRE_LISTEN": f"{services.LOOPBACK}:{self.port}",
            "BUCKETWIRE_SECRET_KEYS": KEY,
            "BUCKETWIRE_VAR": str(self.folder),
            **self.settings,
        }

    def ping(self) -> None:
        httpx.get(f"{self.url}/healthz", timeout=5).raise_for_status()

    @property
    def url(self) -> str:
        return f"http://{services.LOOPBACK}:{self.port}"

    def post(self, content: bytes, *, query: str = "", **headers: str) -> httpx.Response:
        """Send a body to /v1/events; `content_type` and the like are headers."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(f"/v1/events{query}", content=content, headers=named)


KEY = Fernet.generate_key().decode()
Start = Callable[..., Api]


@pytest.fixture
def database(outbox_url: str) -> Iterator[Database]:
    """An empty log on each kind of database."""
    opened = migrated(outbox_url)
    yield opened
    opened.close()


@pytest.fixture
def start() -> Iterator[Start]:
    """Start an API over a database's URL; `settings` are `BUCKETWIRE_*` variables without the prefix."""
    with ExitStack() as stack:

        def started(database_url: str, **settings: Any) -> Api:
            named = {f"BUCKETWIRE_{name.upper()}": str(value) for name, value in settings.items()}
            api = Api(database_url, named)
            stack.callback(api.stop)
            stack.callback(api.client.close)  # first: the server waits for open connections
            api.start()
            return api

        yield started


@pytest.fixture
def api(database: Database, start: Start) -> Api:
    """An API over an empty log, open to this machine, on each kind of database."""
    return start(database.url.render_as_string(hide_password=False))


@pytest.fixture
def log(postgres_database: str) -> Iterator[Database]:
    """An empty log on PostgreSQL, for what does not depend on the database."""
    opened = migrated(postgres_database)
    yield opened
    opened.close()


@pytest.fixture
def plain(log: Database, start: Start) -> Api:
    """An API over an empty log on PostgreSQL, open to this machine."""
    return start(url_of(log))


def url_of(database: Database) -> str:
    """The database's URL with its password."""
    return database.url.render_as_string(hide_password=False)


def records(database: Database) -> list[str]:
    """Every record in the log, in its order."""
    with database.reading() as connection:
        return list(connection.execute(sa.select(m.events.c.record).order_by(m.events.c.seq)).scalars())


def keys(database: Database) -> list[str]:
    """The key of every event in the log, in its order."""
    with database.reading() as connection:
        return list(connection.execute(sa.select(m.events.c.key).order_by(m.events.c.seq)).scalars())


def token(database: Database, *scopes: str) -> dict[str, str]:
    """The header of a new token with these scopes."""
    return {"Authorization": f"Bearer {Tokens(database).create('-'.join(scopes), scopes)}"}


def problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The problem that an answer is; every one has the shape of RFC 9457."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = response.json()
    assert found["type"] == f"urn:bucketwire:problem:{kind}"
    assert found["status"] == status
    assert isinstance(found["title"], str)
    assert isinstance(found["detail"], str)
    assert "Traceback" not in response.text
    return found
