"""Read and change the rows of a target's store directly: documents by path."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, unquote_plus

import httpx
import orjson
import psycopg2.extras

from app.events.highwayhash import document_ids
from tests import services

TABLE = "rows"


class TargetContents(Protocol):
    """The rows of one table, hash or index."""

    def all(self) -> dict[str, Any]:
        """Return every document by path."""

    def set(self, path: str, document: Any) -> None:
        """Write a document, or delete it with None."""


@dataclass
class RedisContents:
    server: services.Redis

    def all(self) -> dict[str, Any]:
        with self.server.client() as client:
            return {path.decode(): orjson.loads(text) for path, text in client.hgetall(TABLE).items()}

    def set(self, path: str, document: Any) -> None:
        with self.server.client() as client:
            if document is None:
                client.hdel(TABLE, path)
            else:
                client.hset(TABLE, path, orjson.dumps(document))


@dataclass
class PostgresContents:
    server: services.Postgres
    database: str

    def all(self) -> dict[str, Any]:
        with self.server.connection(self.database) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT key, value FROM {TABLE}")
            return dict(cursor.fetchall())

    def set(self, path: str, document: Any) -> None:
        with self.server.connection(self.database) as connection, connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {TABLE} WHERE key = %s", (path,))
            if document is not None:
                cursor.execute(f"INSERT INTO {TABLE} VALUES (%s, %s)", (path, psycopg2.extras.Json(document)))


@dataclass
class MysqlContents:
    server: services.MySQL
    database: str

    @property
    def dsn(self) -> str:
        """The value of the target's setting."""
        return f"{services.USER}:{services.PASSWORD}@tcp({services.LOOPBACK}:{self.server.port})/{self.database}"

    def all(self) -> dict[str, Any]:
        return {path: orjson.loads(text) for path, text in self._run(f"SELECT key_name, value FROM `{TABLE}`")}

    def set(self, path: str, document: Any) -> None:
        self._run(f"DELETE FROM `{TABLE}` WHERE key_name = %s", path)
        if document is not None:
            self._run(f"INSERT INTO `{TABLE}` (key_name, value) VALUES (%s, %s)", path, orjson.dumps(document).decode())

    def _run(self, statement: str, *values: str) -> Sequence[tuple[Any, ...]]:
        with self.server.connection(self.database) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            connection.commit()
            return list(cursor.fetchall())


@dataclass
class ElasticsearchContents:
    """With ids as MinIO makes them; a document that names no object is returned by its id."""

    server: services.Elasticsearch
    index: str = TABLE

    @property
    def login(self) -> dict[str, str]:
        """The values of the target's settings."""
        trust = {"tls_ca": str(services.certificates().ca)}
        return {"url": self.server.url, "username": self.server.user_name, "password": services.PASSWORD} | trust

    def all(self) -> dict[str, Any]:
        self.ask("POST", "_refresh")
        hits = self.ask("GET", "_search?size=10000").json()["hits"]["hits"]
        return {_path(hit["_source"]) or hit["_id"]: hit["_source"] for hit in hits}

    def set(self, path: str, document: Any) -> None:
        (id_,) = document_ids([path])
        self.put(id_, document)

    def put(self, id_: str, document: Any) -> None:
        """Do the same as `set`, under any id."""
        if document is None:
            self.ask("DELETE", f"_doc/{quote(id_, safe='')}")
        else:
            self.ask("PUT", f"_doc/{quote(id_, safe='')}", document)

    def ask(self, method: str, path: str, document: Any = None) -> httpx.Response:
        """Send a request about the index, or about an absolute path; it has to succeed."""
        trust = ssl.create_default_context(cafile=str(services.certificates().ca))
        login = (self.server.user_name, services.PASSWORD)
        with httpx.Client(base_url=self.server.url, auth=login, verify=trust, timeout=60, trust_env=False) as client:
            response = client.request(method, path if path.startswith("/") else f"/{self.index}/{path}", json=document)
        assert response.is_success, response.text
        return response


def _path(document: Any) -> str | None:
    try:
        s3 = document["Records"][0]["s3"]
    except LookupError:
        return None
    return f"{s3['bucket']['name']}/{unquote_plus(s3['object']['key'])}"
