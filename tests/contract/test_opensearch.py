"""OpenSearch, which is served where `opensearch=on` asks for it, read back over plain HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3

from app.config import target_settings
from app.config.targets.elasticsearch import ElasticsearchSettings
from app.events.highwayhash import document_ids
from spark_jobs.stores import elasticsearch
from tests.services.opensearch import OpenSearch, opensearch
from tests.support import sample_events
from tests.support.names import unused
from workers.delivery.outcomes import DELIVERED, Rejected
from workers.systems.elasticsearch.target import ElasticsearchTarget
from workers.targets import payloads
from workers.targets.base import Target, TargetUnavailable

pytestmark = pytest.mark.nightly("Elasticsearch")

WINDOWS = pytest.mark.parametrize("window", [1, 100])


@pytest.fixture(scope="module")
def server() -> Iterator[OpenSearch]:
    with opensearch() as running:
        yield running


def made(server: OpenSearch, index: str, **settings: str) -> Target:
    values = {"url": server.url, "index": index, "opensearch": "on"} | settings
    return ElasticsearchTarget(target_settings.load(ElasticsearchSettings, values))


def documents(server: OpenSearch, index: str) -> dict[str, Any]:
    with urllib3.PoolManager() as pool:
        pool.request("POST", f"{server.url}/{index}/_refresh")
        answer = pool.request("GET", f"{server.url}/{index}/_search?size=1000").json()
    return {hit["_id"]: hit["_source"] for hit in answer["hits"]["hits"]}


def test_without_the_option_it_is_refused_by_name(server: OpenSearch) -> None:
    with pytest.raises(TargetUnavailable, match=f"this is OpenSearch {server.version}; set opensearch=on"):
        made(server, "events", opensearch="off").open()


@WINDOWS
def test_it_mirrors_objects_under_minios_ids(server: OpenSearch, window: int) -> None:
    target = made(server, f"mirror-{window}")
    batch = [sample_events.put(key) for key in (*sample_events.ODD_KEYS, "same", "same")]
    assert set(target.deliver(batch, window)) == {DELIVERED}
    last = {event.path: json.loads(payloads.records(event)) for event in batch}
    expected = dict(zip(document_ids(list(last)), last.values(), strict=True))
    assert documents(server, f"mirror-{window}") == expected
    gone = [sample_events.delete(key) for key in sample_events.ODD_KEYS] + [
        sample_events.delete_version("same", "null")
    ]
    assert set(target.deliver(gone, window)) == {DELIVERED}
    assert documents(server, f"mirror-{window}") == {}
    target.close()


def test_what_it_holds_is_read_whole_whatever_the_slices(server: OpenSearch) -> None:
    target = made(server, "sliced")
    with urllib3.PoolManager() as pool:
        pool.request("PUT", f"{server.url}/sliced", json={"settings": {"number_of_shards": 3}})
    batch = [sample_events.put(key) for key in (*sample_events.ODD_KEYS, *(f"many/{number}" for number in range(15)))]
    assert set(target.deliver(batch, 100)) == {DELIVERED}
    target.close()
    settings = target_settings.load(ElasticsearchSettings, {"url": server.url, "index": "sliced", "opensearch": "on"})
    for tasks, page, slices in ((1, 100, 3), (4, 3, 6), (9, 1, 9)):
        found = elasticsearch.open_point_in_time(settings, "images", tasks=tasks, page=page)
        assert found is not None
        assert found.slices == slices
        keys = [row[0] for number in range(slices) for row in found.read(number)]
        assert sorted(map(str, keys)) == sorted(event.key for event in batch)


def test_it_keeps_every_event(server: OpenSearch) -> None:
    index = unused("journal")
    target = made(server, index, format="access")
    batch = [sample_events.put(f"object-{number % 5}") for number in range(20)]
    assert set(target.deliver(batch, 100)) == {DELIVERED}
    target.close()
    assert len(documents(server, index)) == 20


def test_what_it_cannot_parse_is_rejected_in_its_own_words(server: OpenSearch) -> None:
    event = sample_events.put("a")
    poison = event._replace(record=event.record.replace('"size":', '"size..x":'))
    target = made(server, "poison")
    outcomes = list(target.deliver([poison, sample_events.put("b")], 100))
    target.close()
    assert isinstance(outcomes[0], Rejected)
    assert "mapper_parsing_exception" in outcomes[0].reason
    assert outcomes[1] == DELIVERED
