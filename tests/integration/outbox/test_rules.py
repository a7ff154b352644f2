"""Rules as they are stored."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from app.outbox.engine.database import Database
from app.outbox.registry import Registry
from app.outbox.rules import StoredRule
from app.rules.model import Rule
from tests.support.builders import add_target, registry


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
