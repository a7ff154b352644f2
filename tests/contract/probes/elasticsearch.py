"""Elasticsearch, read back by its own client."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import elasticsearch

from app.events.model import Event
from tests import services
from tests.contract.probes.base import Probe, path_of
from tests.services.refusing_proxy import refusing_proxy
from tests.support import sample_events
from workers.targets import payloads

MOST = 10_000  # what one search returns


class _Elasticsearch(Probe):
    type = "elasticsearch"
    shared_server = staticmethod(services.elasticsearch)
    format = "access"
    can_reject = True

    def __init__(self, server: services.Elasticsearch | None = None) -> None:
        self.server: services.Elasticsearch = server or services.elasticsearch()
        self.index = "bucketevents"
        self._before = contextlib.ExitStack()  # what is in front of the server, until the next test

    def values(self) -> dict[str, str]:
        login = {"username": self.server.user_name, "password": services.PASSWORD}
        trust = {"tls_ca": str(services.certificates().ca)} if self.server.tls else {}
        # A busy machine may take seconds to learn the fields of so many kinds of records.
        place = {"url": self.server.url, "index": self.index, "timeout": "4s"}
        return place | {"format": self.format} | login | trust

    def at_port(self, port: int) -> dict[str, str]:
        return self.values() | {"url": self.server.url.replace(f":{self.server.port}", f":{port}")}

    def as_stranger(self) -> dict[str, str]:
        return self.values() | {"password": "wrong-s3cret"}

    def by_tls(self, ca: Path) -> dict[str, str]:
        if self.server.tls:
            return self.values() | {"tls_ca": str(ca)}
        gateway = self._before.enter_context(refusing_proxy(self.server.port, tls=True))
        return self.values() | {"url": f"https://{services.LOOPBACK}:{gateway.port}", "tls_ca": str(ca)}

    def close_gateways(self) -> None:
        self._before.close()

    def renew(self) -> None:
        self.close_gateways()
        if not self.server.running:
            self.server.stop()
            self.server.start()
        with self.client() as client:
            client.options(ignore_status=404).indices.delete(index=self.index)
            client.cluster.health(wait_for_status="yellow", timeout="20s")

    @contextlib.contextmanager
    def client(self) -> Iterator[elasticsearch.Elasticsearch]:
        """The client that Elastic publishes."""
        found = elasticsearch.Elasticsearch(
            self.server.url,
            basic_auth=(self.server.user_name, services.PASSWORD),
            request_timeout=30,
            **({"ca_certs": str(services.certificates().ca)} if self.server.tls else {}),
        )
        try:
            yield found
        finally:
            found.close()

    def documents(self, index: str = "") -> list[dict[str, Any]]:
        """All documents in the order in which their shard took them, with their ids."""
        name = index or self.index
        with self.client() as client:
            try:
                client.indices.refresh(index=name)
                answer = client.search(index=name, size=MOST, seq_no_primary_term=True, sort="_doc")
            except elasticsearch.NotFoundError:
                return []
            except elasticsearch.ApiError:
                return []  # its shard is on its way
        found: list[dict[str, Any]] = answer["hits"]["hits"]
        assert answer["hits"]["total"]["value"] == len(found)
        return sorted(found, key=lambda hit: int(hit["_seq_no"]))

    def held(self) -> list[tuple[str, str]]:
        texts = [json.dumps(hit["_source"]) for hit in self.documents()]
        return [(path_of(text), text) for text in texts]

    def expected(self, event: Event) -> str:
        return payloads.records(event)

    def same(self, document: str, expected: str) -> bool:
        # The client gives parsed documents; what is stored, byte for byte, has a test of its own.
        return bool(json.loads(document) == json.loads(expected))

    def poison(self, key: str) -> Event:
        # What a header X-Amz-Meta-A..B makes: Elasticsearch has no such field names.
        made = sample_events.put(key, metadata="poison")
        return made._replace(record=made.record.replace('"note":"poison"', '"userMetadata":{"a..b":"x"}'))


class Namespace(_Elasticsearch):
    """A document for each object."""

    format = "namespace"
    is_namespace = True


class Access(_Elasticsearch):
    """A document for each event."""


WAYS = {"elasticsearch-namespace": Namespace, "elasticsearch-access": Access}
