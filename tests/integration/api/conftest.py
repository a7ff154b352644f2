"""A real API: gunicorn with its processes and threads on a fresh port, over a real database."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl

import boto3
import botocore.config
import httpx
import minio as minio_py
import pytest
import sqlalchemy as sa
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography import x509
from cryptography.fernet import Fernet

from app.config.settings import Settings
from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.tokens import Tokens
from app.server.gunicorn_options import command
from tests import provision, services
from tests.services.forking import fork
from tests.support.builders import migrated

SERVERS = {"postgresql": "postgres_server", "mysql": "mysql_server", "mariadb": "mariadb_server"}


@dataclass(eq=False)
class Api(services.Server):
    """The API as `gunicorn` serves it."""

    name: ClassVar[str] = "api"
    database_url: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """It is ours and always there."""

    def prepare(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def argv(self) -> Sequence[str | Path]:
        return [sys.executable, "-m", *command()]

    def env(self) -> Mapping[str, str]:
        return {
            "BUCKETWIRE_DATABASE_URL": self.database_url,
            "BUCKETWIRE_BROKER_URL": f"redis://{services.LOOPBACK}:9/0",  # nobody listens: it must not matter
            "BUCKETWIRE_LISTEN": f"{services.LOOPBACK}:{self.port}",
            "BUCKETWIRE_SECRET_KEYS": KEY,
            "BUCKETWIRE_DATA_DIR": str(self.folder),
            **self.settings,
        }

    def spawn(self) -> services.Child:
        return fork(command(), self.log, env=self.env())

    def ping(self) -> None:
        services.get(self.port, "/healthz")

    @property
    def url(self) -> str:
        return f"http://{services.LOOPBACK}:{self.port}"

    def post(self, content: bytes, *, query: str = "", **headers: str) -> httpx.Response:
        """Send a body to /v1/events; `content_type` and the like are headers."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(f"/v1/events{query}", content=content, headers=named)


KEY = Fernet.generate_key().decode()
Start = Callable[..., Api]


@dataclass
class _Shared:
    """One API and its database for each kind of database, for all tests that leave both as they found them."""

    apis: dict[str, tuple[Api, Database]]
    stack: ExitStack

    def on(self, kind: str, url: str) -> tuple[Api, Database]:
        if kind not in self.apis:
            database = migrated(url)
            self.stack.callback(database.close)
            api = Api(url)
            self.stack.callback(api.stop)
            self.stack.callback(api.client.close)
            api.start()
            self.apis[kind] = api, database
        _empty(self.apis[kind][1])
        return self.apis[kind]


def _empty(database: Database) -> None:
    """An empty log; the version grows, so that the API notices that targets and rules are gone."""
    head = tables.log_head.c
    with database.writing() as connection:
        connection.execute(tables.log_head.update().values(version=head.version + 1, last_seq=0, arrivals_seq=0))
        for table in reversed(tables.metadata.sorted_tables):
            if table is not tables.log_head:
                connection.execute(table.delete())


@pytest.fixture(scope="session")
def shared() -> Iterator[_Shared]:
    with ExitStack() as stack:
        yield _Shared({}, stack)


ON_TWO = pytest.mark.nightly(
    "SQLite and PostgreSQL: what is asked of a database is asked by the outbox, whose tests ask all four"
)


@pytest.fixture(params=["sqlite", "postgresql", *(pytest.param(each, marks=ON_TWO) for each in ("mysql", "mariadb"))])
def on_each(
    request: pytest.FixtureRequest, shared: _Shared, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Api, Database]:
    if request.param in shared.apis:
        url = ""
    elif request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('api')}/outbox.db"
    else:
        server = request.getfixturevalue(SERVERS[request.param])
        url = server.create_database("api_tests")
    return shared.on(request.param, url)


@pytest.fixture
def api(on_each: tuple[Api, Database]) -> Api:
    """An API over an empty log, open to this machine, on each kind of database."""
    return on_each[0]


@pytest.fixture
def database(on_each: tuple[Api, Database]) -> Database:
    """The log of `api`."""
    return on_each[1]


@pytest.fixture
def plain(shared: _Shared, postgres_server: services.Postgres) -> Api:
    """An API over an empty log on PostgreSQL, for what does not depend on the database; open to this machine."""
    url = "" if "postgresql" in shared.apis else postgres_server.create_database("api_tests")
    return shared.on("postgresql", url)[0]


@pytest.fixture
def plain_log(plain: Api, shared: _Shared) -> Database:
    """The log of `plain`."""
    return shared.apis["postgresql"][1]


@pytest.fixture
def log(postgres_outbox: str) -> Iterator[Database]:
    """An empty log on PostgreSQL of the test's own, to `start` an API over."""
    opened = migrated(postgres_outbox)
    yield opened
    opened.close()


@pytest.fixture
def start() -> Iterator[Start]:
    """Start an API over a database's URL; `settings` are `BUCKETWIRE_*` variables without the prefix.

    It has returned when one of the API's processes answers: give `processes` where the others must not start later.
    """
    with ExitStack() as stack:

        def started(database_url: str, *, processes: int = 0, **settings: Any) -> Api:
            named = {f"BUCKETWIRE_{name.upper()}": str(value) for name, value in settings.items()}
            if processes:
                named["GUNICORN_CMD_ARGS"] = f"--workers {processes}"
            api = Api(database_url, named)
            stack.callback(api.stop)
            stack.callback(api.client.close)  # first: the server waits for open connections
            api.start()
            return api

        yield started


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What ends with the test."""
    with ExitStack() as opened:
        yield opened


def settings(url: str, **more: str) -> Settings:
    """Settings of an API that runs in this process, whose broker is away and which writes no key."""
    given = {f"BUCKETWIRE_{name.upper()}": text for name, text in more.items()}
    base = {
        "BUCKETWIRE_DATABASE_URL": url,
        "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9",
        "BUCKETWIRE_SECRET_KEYS": KEY,
    }
    return Settings.from_environ(base | given)


def url_of(database: Database) -> str:
    """The database's URL with its password."""
    return database.url.render_as_string(hide_password=False)


def records(database: Database) -> list[str]:
    """Every record in the log, in its order."""
    with database.reading() as connection:
        return list(connection.execute(sa.select(tables.events.c.record).order_by(tables.events.c.seq)).scalars())


def keys(database: Database) -> list[str]:
    """The key of every event in the log, in its order."""
    with database.reading() as connection:
        return list(connection.execute(sa.select(tables.events.c.key).order_by(tables.events.c.seq)).scalars())


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


S3_KEYS = "watch:read:WATCHER:only-looks-on"


@dataclass
class S3:
    """An API with a key of the S3 face, its log, and clients of it."""

    api: Api
    database: Database

    access_key: ClassVar[str] = "BUCKETWIRE"
    secret_key: ClassVar[str] = "the/secret+key"

    @property
    def place(self) -> str:
        """Host and port, as minio-py wants it."""
        return f"{services.LOOPBACK}:{self.api.port}"

    def boto3(self, **settings: Any) -> Any:
        """A boto3 client; to be closed by the caller."""
        config = {"s3": {"addressing_style": "path"}, "retries": {"total_max_attempts": 2}, "region_name": "us-east-1"}
        return boto3.client(
            "s3",
            endpoint_url=self.api.url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=botocore.config.Config(**config | settings),
        )

    def minio(self) -> minio_py.Minio:
        """A minio-py client."""
        return minio_py.Minio(self.place, self.access_key, self.secret_key, secure=False)

    def sign(self, method: str, path: str, content: bytes = b"", *, key: str = "", secret: str = "") -> httpx.Request:
        """A request signed in its headers; `path` with its query."""
        place, _, query = path.partition("?")
        parameters = parse_qsl(query, keep_blank_values=True)
        signed = AWSRequest(method, self.api.url + place, params=parameters, data=content)
        credentials = Credentials(key or self.access_key, secret or self.secret_key)
        S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(signed)
        return self.api.client.build_request(method, path, content=content, headers=dict(signed.headers))

    def ask(self, method: str, path: str, content: bytes = b"", **key: str) -> httpx.Response:
        """The answer to a signed request."""
        return self.api.client.send(self.sign(method, path, content, **key))

    def mc(self, *arguments: str) -> Mc:
        """Run `mc` with this service as the alias `bw`."""
        return Mc(self, arguments)


@dataclass
class Mc:
    """One run of `mc`: wait for its end by `done`, or follow `lines`."""

    s3: S3
    arguments: Sequence[str]

    def __post_init__(self) -> None:
        services.need("mc")
        folder = self.s3.api.folder
        argv = [provision.MC / "mc", "--config-dir", folder / "mc", *self.arguments]
        env = {
            "MC_HOST_bw": f"http://{self.s3.access_key}:{self.s3.secret_key}@{self.s3.place}",
            "HOME": str(folder),
            "PATH": "/usr/bin:/bin",
        }
        self.child = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def done(self) -> tuple[int, str]:
        """Its exit code and what it said."""
        try:
            said, _ = self.child.communicate(timeout=60)
        finally:
            self.stop()
        return self.child.returncode, said

    def stop(self) -> None:
        """End it."""
        self.child.kill()
        self.child.wait(10)
        if self.child.stdout:
            self.child.stdout.close()


@pytest.fixture(scope="session")
def _s3_session(postgres_server: services.Postgres) -> Iterator[S3]:
    database = migrated(postgres_server.create_database("s3_tests"))
    settings = {
        "BUCKETWIRE_ACCESS_KEY": S3.access_key,
        "BUCKETWIRE_SECRET_KEY": S3.secret_key,
        "BUCKETWIRE_S3_KEYS": S3_KEYS,
    }
    api = Api(url_of(database), settings)
    with ExitStack() as stack:
        stack.callback(database.close)
        stack.callback(api.stop)
        stack.callback(api.client.close)
        yield S3(api.start(), database)


@pytest.fixture
def s3(_s3_session: S3) -> S3:
    """An API with keys over an empty log on PostgreSQL."""
    _empty(_s3_session.database)
    return _s3_session


@dataclass(eq=False)
class SecureApi(Api):
    """The API with a certificate; `trusted` is the authority that its client goes by."""

    def prepare(self) -> None:
        self.cert, self.key = self.folder / "api.crt", self.folder / "api.key"
        certs = services.certificates()
        self.trusted = ssl.create_default_context(cafile=certs.ca)
        self.put(certs.cert, certs.key)
        super().prepare()
        self.client.close()
        self.client = httpx.Client(base_url=self.url, timeout=60, verify=self.trusted, trust_env=False)
        self.settings = {
            **self.settings,
            "BUCKETWIRE_TLS_CERT": str(self.cert),
            "BUCKETWIRE_TLS_KEY": str(self.key),
        }

    def put(self, cert: Path, key: Path) -> None:
        """Replace certificate and key, each as a whole."""
        for source, place in ((cert, self.cert), (key, self.key)):
            draft = place.with_suffix(".draft")
            shutil.copy(source, draft)
            draft.rename(place)

    def ping(self) -> None:
        httpx.get(f"{self.url}/healthz", timeout=5, verify=self.trusted, trust_env=False).raise_for_status()

    @property
    def url(self) -> str:
        return f"https://{services.LOOPBACK}:{self.port}"

    def presented(self) -> int:
        """The serial number of the certificate that a new connection is served with, whoever issued it."""
        pem = ssl.get_server_certificate((services.LOOPBACK, self.port), timeout=30)
        return x509.load_pem_x509_certificate(pem.encode()).serial_number
