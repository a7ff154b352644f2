"""Mappings: those that a target gives the indices that it creates, and those of others that refuse every document."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from tests import services
from tests.contract.probes.base import attempt
from tests.contract.probes.elasticsearch import Access, Namespace
from tests.support import sample_events
from tests.support.names import unused
from workers.delivery.outcomes import DELIVERED, NotAttempted, Unavailable

DATES = ["2024-01-01", "2024/01/01 10:00:00", "2024-01-01T10:00:00Z"]


@pytest.fixture
def mirror(elastic: services.Elasticsearch) -> Namespace:
    probe = Namespace(elastic)
    probe.renew()
    return probe


def types(probe: Namespace, index: str, field: str) -> set[str]:
    with probe.client() as client:
        return set(client.field_caps(index=index, fields=field)["fields"].get(field, {}))


@pytest.mark.parametrize(
    ("settings", "time"),
    [
        ({"format": "namespace"}, "Records.eventTime"),
        ({"format": "access"}, "Records.eventTime"),
        ({"format": "access", "access_shape": "guide"}, "@timestamp"),
        ({"format": "access", "payload": "cloudevents"}, "time"),
        ({"format": "access", "index": "of-a-template-{bucket}"}, "Records.eventTime"),
    ],
)
def test_texts_that_look_like_dates_or_numbers_make_no_field_refuse_others(
    mirror: Namespace, settings: dict[str, str], time: str
) -> None:
    """As keys, and as the first values that metadata of a name have."""
    if "index" in settings:
        settings = settings | {"index": unused("dated") + "-{bucket}"}
    batch = [sample_events.put(key, metadata=key) for key in [*DATES, "12345", "cat.jpg", "no date"]]
    with closing(mirror.target(**settings)) as target:
        for event in batch:  # one by one: the first decides the types of fields
            assert list(target.deliver([event], 100)) == [DELIVERED]
    index = settings.get("index", mirror.index).replace("{bucket}", "images")
    assert len(mirror.documents(index)) == len(batch)
    assert types(mirror, index, time) == {"date"}


def test_a_template_of_the_cluster_goes_before_the_types_of_the_target(mirror: Namespace) -> None:
    index = unused("templated")
    names: dict[str, Any] = {"type": "keyword"}
    for level in ("eventTime", "Records"):
        names = {"properties": {level: names}}
    with mirror.client() as client:
        client.indices.put_index_template(name=index, index_patterns=[index], template={"mappings": names})
    assert mirror.delivered([sample_events.put("2024-01-01"), sample_events.put("a")], index=index) == [DELIVERED] * 2
    assert types(mirror, index, "Records.eventTime") == {"keyword"}


KEY_AS_DATE: dict[str, Any] = {"type": "date"}
for level in ("key", "object", "s3", "Records"):
    KEY_AS_DATE = {"properties": {level: KEY_AS_DATE}}


@pytest.mark.parametrize("format_", ["namespace", "access"])
@pytest.mark.parametrize(
    ("index", "why"),
    [
        ({"mappings": KEY_AS_DATE}, "of type [date]"),
        ({"mappings": {"dynamic": "strict"}}, "set to strict"),
        ({"mappings": {"properties": {"Records": {"type": "long"}}}}, "of type [long]"),
        ({"mappings": {"_routing": {"required": True}}}, "routing is required"),
        ({"settings": {"index.default_pipeline": "absent"}}, "pipeline with id [absent]"),
        ({"settings": {"index.mapping.total_fields.limit": 3}}, "Limit of total fields [3]"),
        ({"settings": {"index.mapping.depth.limit": 1}}, "Limit of mapping depth [1]"),
    ],
    ids=["key as date", "strict", "another type", "routing", "pipeline", "limit of fields", "limit of depth"],
)
def test_an_index_that_refuses_every_document_is_to_blame_and_no_event(
    mirror: Namespace, index: dict[str, Any], why: str, format_: str
) -> None:
    with mirror.client() as client:
        client.indices.create(index=mirror.index, **index)
    puts = [sample_events.put(f"object-{number}") for number in range(10)]
    for batch in (puts, puts[:1], [*puts[:2], sample_events.delete("object-7")]):
        for window in (1, 100):
            with closing(mirror.target(format=format_)) as target:
                outcomes = attempt(target, batch, window)
            assert isinstance(outcomes[0], Unavailable)
            assert why in outcomes[0].reason
            refused = [outcome for event, outcome in zip(batch, outcomes, strict=True) if "Put" in event.name]
            assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in refused)


def test_a_data_stream_whose_documents_lack_the_time_is_to_blame_and_no_event(mirror: Namespace) -> None:
    with mirror.client() as client:
        client.indices.put_index_template(name="timeless", index_patterns=["timeless-*"], data_stream={}, priority=9)
    with closing(Access(mirror.server).target(index=unused("timeless"))) as target:
        outcomes = attempt(target, [sample_events.put(f"object-{number}") for number in range(5)], 100)
    assert isinstance(outcomes[0], Unavailable)
    assert "@timestamp" in outcomes[0].reason
    assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in outcomes)


@pytest.mark.parametrize("format_", ["namespace", "access"])
def test_metadata_whose_names_do_not_fit_together_reject_their_event_alone(mirror: Namespace, format_: str) -> None:
    def described(key: str, **metadata: str) -> Any:
        event = sample_events.put(key, metadata="own")
        names = json.dumps({name.replace("_", "."): value for name, value in metadata.items()})
        return event._replace(record=event.record.replace('"note":"own"', f'"userMetadata":{names}'))

    batch = [described("a", color="red"), described("b", color_of_it="red"), described("c", color="blue")]
    with closing(mirror.target(format=format_)) as target:
        outcomes = list(target.deliver(batch, 100))
    assert [type(outcome).__name__ for outcome in outcomes] == ["Delivered", "Rejected", "Delivered"]
