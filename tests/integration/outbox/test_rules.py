"""Rules as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier

import orjson
import pytest
import sqlalchemy as sa

from app.events.model import Event
from app.outbox import tables
from app.outbox.declared import StoredRule
from app.outbox.engine.database import Database
from app.outbox.log.append import Log, Receipt
from app.outbox.log.routing import load_routing
from app.outbox.registry import Registry
from app.rules.filters import Filters, Pairs
from app.rules.model import BadRules, Rule
from app.rules.notification_xml import configuration
from tests.support import databases
from tests.support.builders import add_target, event, registry

pytestmark = databases.TWO


@databases.ALL
def test_a_rule_that_two_add_at_once_is_there_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule(bucket="images", events=("s3:ObjectCreated:*",), target=add_target(database))
    both_have_looked, read = Barrier(2), Registry.rules

    def rules(self: Registry, bucket: str | None = None) -> list[StoredRule]:
        found = read(self, bucket)
        both_have_looked.wait(10)
        return found

    with monkeypatch.context() as patched, ThreadPoolExecutor(2) as threads:
        patched.setattr(Registry, "rules", rules)
        numbers = list(threads.map(lambda _: registry(database).add_rule(rule), range(2)))
    assert len(set(numbers)) == 1
    assert [stored.row_id for stored in registry(database).rules("images")] == numbers[:1]


@databases.THREE
def test_a_rule_comes_back_as_it_was_stored_with_its_filters_in_their_order(database: Database) -> None:
    target = add_target(database, bucket="other")
    filters = [
        Filters(),
        Filters(regex="a\\.b|\U0001f600'\"", min_size=0),
        Filters(metadata=Pairs(b="\U0001f600", a="'\"\\"), tags=Pairs({"z z": "", "a": "=,"}), max_size=5 << 40),
        Filters(tags=Pairs({str(number): "é" * 2048 for number in range(50)})),
    ]
    rules = [
        Rule(bucket="images", events=("*",), target=target, prefix="p", filters=one, filter_names=("regex", "prefix"))
        for one in filters
    ]
    registry(database).replace_rules("images", rules)
    found = [stored.rule for stored in registry(database).rules("images")]
    assert found == rules
    assert configuration(found, "") == configuration(rules, "")
    assert registry(database).add_rule(rules[2]) == registry(database).rules("images")[2].row_id
    with database.reading() as connection:
        stored = connection.execute(sa.select(tables.rules.c.filter_names).where(tables.rules.c.bucket == "images"))
        assert set(stored.scalars()) == {"prefix"}, "the version before knows no other name and would fail"


def test_a_rule_that_the_new_ones_repeat_keeps_its_number(database: Database) -> None:
    target = add_target(database, bucket="other")
    first, second, third = (Rule(bucket="images", events=("*",), target=target, prefix=prefix) for prefix in "abc")
    stored = registry(database)
    stored.replace_rules("images", [first, second])
    [before, _] = stored.rules("images")
    stored.replace_rules("images", [third, first])
    assert stored.rules("images")[0] == before
    assert [one.rule for one in stored.rules("images")] == [first, third]


def test_an_event_is_recorded_for_the_targets_whose_filters_it_passes(database: Database) -> None:
    large, all_of_them = add_target(database, "large", bucket="other"), add_target(database, "all", bucket="images")
    registry(database).add_rule(
        Rule(bucket="images", events=("*",), target=large, filters=Filters(regex="[a-c]", min_size=1 << 20))
    )

    def sized(key: str, size: int | None) -> Event:
        made = event(key)
        record = orjson.loads(made.record)
        if size is not None:
            record["s3"]["object"]["size"] = size
        return made._replace(record=orjson.dumps(record).decode())

    events = [sized("a", 1 << 20), sized("b", 5), sized("z", 1 << 21), sized("c", None)]
    [receipt] = Log(database).append([events])
    assert isinstance(receipt, Receipt)
    assert receipt.matched == {large: 1, all_of_them: 4}
    with database.reading() as connection:
        assert [len(load_routing(connection, 1).targets(one)) for one in events] == [2, 1, 1, 1]


def test_expressions_that_are_too_much_together_are_refused_however_the_rules_come(database: Database) -> None:
    target = add_target(database)
    rules = [
        Rule(bucket="costly", events=("*",), target=target, filters=Filters(regex=f"(.*a.{{{n}}}|.*b.{{{490 - n}}})"))
        for n in range(100, 115)
    ]
    stored = registry(database)
    for change in (stored.add_rules, partial(stored.replace_rules, "costly")):
        with pytest.raises(BadRules, match="of regular expressions for a key of bucket"):
            change(rules)
        assert stored.rules("costly") == []
    stored.replace_rules("costly", rules[:9])
    with pytest.raises(BadRules, match="of regular expressions for a key of bucket"):
        stored.add_rules(rules[9:])
    with pytest.raises(BadRules, match="of regular expressions for a key of bucket"):
        _add_one_by_one(stored, rules[9:])
    assert len(stored.rules("costly")) == 10
    with pytest.raises(BadRules, match="for a key of bucket costly"):
        stored.add_rule(replace(rules[10], bucket="*"))
    assert not any(rule.rule.filters.regex for rule in stored.rules("*"))


def _add_one_by_one(stored: Registry, rules: Sequence[Rule]) -> None:
    for rule in rules:
        stored.add_rule(rule)
