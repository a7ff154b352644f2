"""The declarations of resources are complete: a member that one names exists, and each says what it is."""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

import app.resources
from app.console.formats import curves
from app.resources.declaration import (
    FLAG,
    TARGET,
    TEXT,
    TIME,
    BadMember,
    Query,
    Resource,
    parameters,
    parse_body,
    parse_change,
    parse_query,
    parts_of,
    set_members,
)
from app.resources.undelivered import DeadLetterFilter, DeadLetterQuery, NewReplay
from tests.support.commands import EVERY

API_PAGE = Path(__file__).parents[3] / "docs/reference/api.md"
TIMES = ("since", "before")

for module in pkgutil.iter_modules(app.resources.__path__, "app.resources."):
    importlib.import_module(module.name)


def declared(base: type[Any]) -> list[type[Any]]:
    return [found for child in base.__subclasses__() for found in (child, *declared(child))]


def test_a_columns_member_is_one_of_the_resource() -> None:
    shown = [resource for resource in declared(Resource) if resource.columns]
    assert len(shown) >= 10
    for resource in shown:
        members = {member for member in resource.columns.values() if isinstance(member, str)}
        assert members <= set(resource.__struct_fields__), resource


def test_a_columns_function_needs_nothing_but_members() -> None:
    class Row(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            assert name in resource.__struct_fields__, (resource, name)
            known = {
                "target": "arn:minio:sqs::audit:webhook",
                "counters": defaultdict(int),
                "age": 0.0,
                "progress": 0.0,
                "settings": {},
            }
            return known.get(name, "")

    for resource in declared(Resource):
        for header, member in resource.columns.items():
            if callable(member) and header not in ("opening", "reason"):  # of members of members
                assert member(Row()) is not None


def test_a_member_means_what_the_table_says_wherever_it_is() -> None:
    rows = re.findall(
        r"^\| `(id|event_id|event|name|number|target)` \| (.+?) \| (.+?) \|$", API_PAGE.read_text(), re.MULTILINE
    )
    meaning: dict[tuple[str, str], str] = {}
    for member, what, schemas in rows:
        for schema in re.findall(r"`(\w+)`", schemas.partition(", and ")[0]):
            assert meaning.setdefault((schema, member), what) is what, "each is in one row"
    abstract = {"RuleFacts", "TokenFacts"}
    members = {
        (resource.__name__, field.encode_name): field.type
        for resource in declared(Resource)
        if resource.__module__.startswith("app.") and resource.__name__ not in abstract
        for field in msgspec.structs.fields(resource)
        if field.encode_name in {member for member, *_ in rows}
    }
    assert meaning.keys() == members.keys()
    for (schema, member), kind in members.items():
        is_number = meaning[schema, member].startswith("a number")
        assert (kind is int) is is_number, (schema, member)
        if member == "target" and schema != "PlannedTarget":
            assert "ARN" in str(kind), (schema, member)


@pytest.mark.parametrize("written", ["2025-11-21T00:33:56Z", "1763685236000", "2h"])
def test_times_of_filters_are_read_alike_by_the_api_by_commands_and_by_the_console(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_763_692_436.0)  # two hours later
    filters = [part for query in declared(Query) for part in parts_of(query) if part.name in TIMES]
    options = [option for command in EVERY.values() for option in command.params if option.name in TIMES]
    assert min(len(filters), len(options)) > 10
    expected = 1_763_685_236_000
    assert {part.member.read(part.name, written) for part in filters} == {expected}
    assert {option.type.convert(written, option, None) for option in options} == {expected}
    drawn = curves({"since": written, "before": written}, time.time())
    assert (drawn.since, drawn.before) == (expected, expected)


def test_a_default_that_is_described_can_be_sent() -> None:
    for query in declared(Query):
        parse = {part.name: part.member.parse for part in parts_of(query)}
        for parameter in parameters(query):
            if (default := parameter["schema"].get("default")) is not None:
                assert parse[parameter["name"]](default) == default, query


def test_every_member_of_a_query_says_what_it_is() -> None:
    queries = declared(Query)
    assert len(queries) >= 20
    assert [(query, part.name) for query in queries for part in parts_of(query) if not part.member.text] == []


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"reasn": "x"}, "reasn"),
        ({"since": "yesterday"}, "since"),
        ({"ids": "1,x"}, "ids"),
        ({"ids": "0"}, "ids"),
        ({"target": "audit"}, "target"),
        ({"prefix": "a\0b"}, "prefix"),
        ({"prefix": "\ud800"}, "prefix"),
        ({"prefix": "x" * 4097}, "prefix"),
        ({"limit": "1001"}, "limit"),
        ({"limit": ""}, "limit"),
        ({"after": "9" * 40}, "after"),
    ],
)
def test_a_wrong_member_is_named(given: dict[str, str], field: str) -> None:
    with pytest.raises(BadMember) as raised:
        parse_query(DeadLetterQuery, given)
    assert raised.value.field == field
    assert raised.value.problem
    assert raised.value.hint


def test_what_is_blank_or_null_is_not_given() -> None:
    assert parse_query(DeadLetterQuery, {"target": "", "since": "", "ids": ""}) == DeadLetterQuery()
    assert parse_body(DeadLetterFilter, {"target": None, "ids": None}) == DeadLetterFilter()
    with pytest.raises(BadMember, match="is missing"):
        parse_body(NewReplay, {"target": ""})


def test_a_change_of_everything_says_so() -> None:
    assert parse_change(DeadLetterFilter, {"all": True}) == DeadLetterFilter()
    chosen = parse_change(DeadLetterFilter, {"ids": [3, 4], "target": "webhook:audit"})
    assert set_members(chosen) == {"ids": [3, 4], "target": "webhook:audit"}
    for wrong in ({}, {"ids": []}, {"all": False}, {"all": "true"}, {"all": True, "bucket": "b"}, {"limit": 1}):
        with pytest.raises(BadMember):
            parse_change(DeadLetterFilter, wrong)


def test_a_list_is_comma_separated_in_a_query_and_a_list_in_a_body() -> None:
    assert parse_query(DeadLetterQuery, {"ids": "3, 4,,"}).ids == (3, 4)
    with pytest.raises(BadMember, match="is not a list"):
        parse_body(DeadLetterFilter, {"ids": "3,4"})


@pytest.mark.parametrize("member", [TEXT, TIME, FLAG, TARGET])
@pytest.mark.parametrize("value", [[], {}, 1.5])
def test_a_value_of_another_type_is_refused(member: Any, value: object) -> None:
    with pytest.raises(BadMember):
        member.read("x", value)
