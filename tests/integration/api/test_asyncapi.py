"""What targets receive is described, and is what is described."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from app.api.asyncapi import SCHEMAS, combinations, described, schemas_of
from app.config.declared_types import TYPES
from app.config.settings import Settings
from app.config.targets.base import MessageSettings, TargetSettings
from app.events.model import Event
from app.events.parsing import parse
from app.server.application import create_app
from tests.support import sample_events
from tests.support.properties import times
from workers.systems.elasticsearch.target import ElasticsearchTarget
from workers.systems.mysql.target import MysqlTarget
from workers.systems.postgresql.target import PostgresTarget
from workers.systems.redis.target import RedisTarget
from workers.systems.webhook.requests import RequestFormat
from workers.targets.messages import message_format
from workers.targets.payloads import records

if TYPE_CHECKING:
    from jsonschema import Draft7Validator

# What writes an entry of format `access` in each adapter.
ENTRIES: dict[str, Callable[[Any], Callable[[Event], str]]] = {
    "elasticsearch": lambda settings: ElasticsearchTarget(settings)._write,
    "mysql": lambda settings: MysqlTarget(settings)._write_entry,
    "postgresql": lambda settings: PostgresTarget(settings)._write_entry,
    "redis": lambda settings: RedisTarget(settings)._write_entry,
}
EVERY = [(kind, values, settings) for kind in TYPES for values, settings in combinations(kind)]


def validator(name: str) -> Draft7Validator:
    from jsonschema import Draft7Validator  # takes two seconds, in each process that collects the tests

    return Draft7Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS}})


def sent() -> list[Event]:
    """What a real MinIO sent, keys that have broken others, and events with a trace."""
    lines = [line for line, _ in sample_events.captured()][:: times(5, 1)]
    events = [event for line in lines for event in parse(line.encode(), {}, now_ms=0).events]
    traced = parse(lines[0].encode(), {}, now_ms=0).events[0]._replace(trace=" ".join(sample_events.TRACE.values()))
    odd = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    return [*events, *odd, sample_events.delete("a"), sample_events.head("a"), traced]


def written(kind: str, settings: TargetSettings, events: list[Event]) -> Iterator[str]:
    """What the adapter of a type writes: each event alone, and several where it can send several."""
    if kind == "webhook":
        build = RequestFormat(settings).build  # type: ignore[arg-type]  # of a webhook
        yield from (build([event])[0].decode() for event in events)
        if getattr(settings, "events_per_post", 1) > 1:
            yield build(events)[0].decode()
    elif isinstance(settings, MessageSettings):
        yield from map(message_format(settings).body, events)
    else:
        write = records if getattr(settings, "format", "") == "namespace" else ENTRIES[kind](settings)
        yield from map(write, events)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "values", "settings"), EVERY, ids=[f"{kind} {values}" for kind, values, _ in EVERY])
def test_what_a_target_receives_has_one_of_the_schemas_that_its_settings_name(
    kind: str, values: dict[str, str], settings: TargetSettings
) -> None:
    validators = {name: validator(name) for name in schemas_of(settings)}
    used = set()
    for text in written(kind, settings, sent()):
        payload = json.loads(text)
        valid = {name for name, one in validators.items() if one.is_valid(payload)}
        assert len(valid) == 1, text
        used |= valid
    assert used == validators.keys()


@pytest.mark.slow
def test_no_payload_has_the_schema_of_another() -> None:
    validators = {name: validator(name) for name in SCHEMAS}
    for schema in SCHEMAS.values():
        validator("Record").check_schema(schema)
    [event] = parse(next(iter(sample_events.captured()))[0].encode(), {}, now_ms=0).events
    texts = {text for kind, _, settings in EVERY for text in written(kind, settings, [event, event])}
    fitting = {tuple(name for name, one in validators.items() if one.is_valid(json.loads(text))) for text in texts}
    assert fitting == {(name,) for name in SCHEMAS if name != "Record"}


def test_the_document_is_whole_and_served_to_everybody(tmp_path: Any) -> None:
    environ = {"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9/0"}
    app = create_app(Settings.from_environ(environ))
    document = app.test_client().get("/asyncapi.json").get_json()
    app.extensions["bucketwire"].database.close()

    assert document == json.loads(json.dumps(described()))
    assert document["asyncapi"] == "3.0.0"
    assert document["channels"].keys() == TYPES.keys()
    assert {operation["channel"]["$ref"] for operation in document["operations"].values()} == {
        f"#/channels/{kind}" for kind in TYPES
    }
    named = {name for channel in document["channels"].values() for name in channel["messages"]}
    assert named | {"Record"} == document["components"]["schemas"].keys()
