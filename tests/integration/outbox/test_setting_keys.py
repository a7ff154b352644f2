"""Single keys of targets are set by several callers at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest

from app.config.arn import SourceId, TargetId, parse_target
from app.config.bucket_settings import BucketId
from app.config.secrets import Sealer
from app.manifest.plan import set_keys
from app.outbox.buckets import UnknownBucket
from app.outbox.declared import UnknownTarget
from app.outbox.delivery.availability import open_breaker
from app.outbox.engine.database import Database
from app.outbox.errors import UnknownSource
from app.outbox.registry import ReadOnlyTarget, Registry
from tests.support import databases
from tests.support.builders import SECRET_KEY, registry

pytestmark = databases.TWO

TARGET = TargetId("webhook", "x")


class Watched(Registry):
    """A registry that reports when it is about to lock."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, Sealer([SECRET_KEY]))
        self.about_to_lock = Event()

    @contextmanager
    def at_once(self) -> Iterator[Registry]:
        self.about_to_lock.set()
        with super().at_once() as locked:
            yield locked


@databases.ALL
def test_two_callers_that_set_different_keys_both_succeed(database: Database) -> None:
    """The second one has read the texts before the first one changes them."""
    first, second = registry(database), Watched(database)
    first.put(TARGET, {"endpoint": "http://127.0.0.1:9/", "auth_token": "s3cret"})
    with ThreadPoolExecutor(1) as other:
        with first.at_once() as locked:
            waiting = other.submit(set_keys, second, {TARGET: {"queue_limit": "5"}})
            assert second.about_to_lock.wait(30)
            set_keys(locked, {TARGET: {"comment": "mine"}})
        waiting.result(30)
    texts = first.texts(first.target(TARGET))
    assert (texts["auth_token"], texts["comment"], texts["queue_limit"]) == ("s3cret", "mine", "5")


def test_one_target_that_cannot_be_set_stops_all(database: Database) -> None:
    targets = registry(database)
    targets.sync_environment({TARGET: {"enable": "on", "endpoint": "http://127.0.0.1:9/"}}, {})
    other = TargetId("webhook", "other")
    with pytest.raises(ReadOnlyTarget):
        set_keys(targets, {other: {"endpoint": "http://127.0.0.1:9/"}, TARGET: {"queue_limit": "5"}})
    assert [stored.target for stored in targets.targets()] == [TARGET]


def test_setting_what_is_set_changes_nothing(database: Database) -> None:
    targets = registry(database)
    wanted = {"endpoint": "http://127.0.0.1:9/", "auth_token": "s3cret"}
    assert not set_keys(targets, {TARGET: wanted}).empty
    open_breaker(database, targets.target(TARGET).row_id, "down", 1, probing=False)
    assert set_keys(targets, {TARGET: wanted | {"auth_token": "*redacted*"}}).empty
    assert targets.target(TARGET).breaker == "open"  # which new settings would have closed


@databases.THREE
def test_an_unknown_name_is_answered_with_the_nearest_of_its_kind(database: Database) -> None:
    every = registry(database)
    every.put(TargetId("webhook", "audit"), {"endpoint": "http://127.0.0.1:9/"})
    every.put(TargetId("redis", "audit"), {"address": "h", "key": "k"})
    every.sources.put(SourceId("redis", "minio"), {"address": "h", "key": "k"})
    every.buckets.put(BucketId("photos"), {"region": "eu-central-1"})
    for wrong, meant in (("webhok:audit", "webhook:audit"), ("redis:Audi", "redis:audit")):
        with pytest.raises(UnknownTarget, match=f"did you mean {meant}?"):
            every.target(parse_target(wrong))
    with pytest.raises(UnknownTarget, match="`bucketwire target ls` shows those there are"):
        every.target(TargetId("webhook", "zz"))
    with pytest.raises(UnknownSource, match=r"did you mean redis:minio\?"):
        every.sources.source(SourceId("redis", "mino"))
    with pytest.raises(UnknownBucket, match=r"did you mean photos\?"):
        every.buckets.bucket(BucketId("photo"))
