"""Stores with the rows of `bench.reconcile`, each on a real server: their fill functions, and the targets' settings."""

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path

import httpx
import orjson

from app.events.highwayhash import document_ids
from bench.reconcile_data import COPIED, parts
from tests import services

TABLE = "rows"
_BATCH = 5_000  # documents of one request


@contextmanager
def postgresql(folder: Path) -> Iterator[Mapping[str, str]]:
    """Fill a table as the target creates it."""
    with services.postgres() as server:
        with server.connection() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {TABLE} (key varchar, value jsonb)")
            for part in parts(folder / COPIED):
                with part.open("rb") as lines:
                    cursor.copy_expert(f"COPY {TABLE} FROM STDIN", lines)
            cursor.execute(f"ALTER TABLE {TABLE} ADD PRIMARY KEY (key)")
            connection.commit()
            connection.autocommit = True
            cursor.execute(f"VACUUM ANALYZE {TABLE}")
        yield {"connection_string": server.dsn(), "table": TABLE}


@contextmanager
def mysql(folder: Path) -> Iterator[Mapping[str, str]]:
    """Fill a table as the target creates it."""
    with services.mysql() as server:
        server.create_database(TABLE)
        with server.connection(TABLE) as connection, connection.cursor() as cursor:
            cursor.execute(
                f"CREATE TABLE `{TABLE}` (key_name VARCHAR(3072) NOT NULL, key_hash CHAR(64) GENERATED ALWAYS AS "
                "(SHA2(key_name, 256)) STORED NOT NULL PRIMARY KEY, value JSON) ENGINE = InnoDB CHARACTER SET = utf8mb4"
            )
            for batch in _batches(folder):
                cursor.executemany(f"INSERT INTO `{TABLE}` (key_name, value) VALUES (%s, %s)", batch)
                connection.commit()
        dsn = f"{services.USER}:{services.PASSWORD}@tcp({services.LOOPBACK}:{server.port})/{TABLE}"
        yield {"dsn_string": dsn, "table": TABLE}


@contextmanager
def redis(folder: Path) -> Iterator[Mapping[str, str]]:
    """Fill a hash."""
    with services.redis() as server:
        with server.client() as client:
            for batch in _batches(folder):
                client.hset(TABLE, mapping=dict(batch))
        yield {"address": f"{services.LOOPBACK}:{server.port}", "key": TABLE}


@contextmanager
def elasticsearch(folder: Path) -> Iterator[Mapping[str, str]]:
    """Fill an index under the ids that the target gives to documents."""
    with services.elasticsearch(tls=True) as server:
        ca = str(services.certificates().ca)
        login, trust = (server.user_name, services.PASSWORD), ssl.create_default_context(cafile=ca)
        with httpx.Client(base_url=server.url, auth=login, verify=trust, timeout=120, trust_env=False) as client:
            for batch in _batches(folder):
                ids = document_ids([path for path, _ in batch])
                lines = [
                    orjson.dumps({"index": {"_id": id_}}).decode() + "\n" + document
                    for id_, (_, document) in zip(ids, batch, strict=True)
                ]
                answer = client.post(
                    f"/{TABLE}/_bulk",
                    params={"filter_path": "errors"},
                    content="\n".join([*lines, ""]).encode(),
                    headers={"Content-Type": "application/x-ndjson"},
                )
                if not answer.is_success or answer.json()["errors"]:
                    raise RuntimeError(answer.text[:300])
        yield {
            "url": server.url, "username": server.user_name, "password": services.PASSWORD, "tls_ca": ca,
            "index": TABLE,
        }  # fmt: skip


STORES: Mapping[str, Callable[[Path], AbstractContextManager[Mapping[str, str]]]] = {
    "postgresql": postgresql, "mysql": mysql, "redis": redis, "elasticsearch": elasticsearch,
}  # fmt: skip


def _batches(folder: Path) -> Iterator[Sequence[tuple[str, str]]]:
    """Yield paths and documents; a tab cannot be in either, and nothing in them is escaped."""

    def documents() -> Iterator[tuple[str, str]]:
        for part in parts(folder / COPIED):
            with part.open() as lines:
                for line in lines:
                    path, _, document = line.rstrip("\n").partition("\t")
                    yield path, document

    remaining = documents()
    while batch := list(islice(remaining, _BATCH)):
        yield batch
