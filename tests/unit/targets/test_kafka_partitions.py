"""A broker that says that a topic has no partitions, which no real one does, is at fault, and no event."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.config.target_settings import load
from tests.support import sample_events
from workers.delivery.outcomes import Failed
from workers.systems.kafka.target import KafkaTarget
from workers.targets.base import TargetUnavailable


def target(topic: str) -> KafkaTarget:
    """A target that is connected to such a broker."""
    made = KafkaTarget(load("kafka", {"brokers": "127.0.0.1:9", "topic": topic, "timeout": "100ms"}))
    asked = SimpleNamespace(add_both=lambda *_: None)
    metadata: Any = SimpleNamespace(
        partitions_for_topic=lambda _: set(), unauthorized_topics=(), request_update=lambda: asked
    )
    made._producer = SimpleNamespace(
        partitions_for=metadata.partitions_for_topic, _metadata=metadata, config={"api_version": (2, 0)},
        _sender=SimpleNamespace(wakeup=lambda: None), close=lambda timeout: None,
    )  # fmt: skip
    made._stamp = made._files()
    return made


def test_a_topic_without_partitions_is_unavailable() -> None:
    with pytest.raises(TargetUnavailable, match="the broker says that the topic has no partitions"):
        target("events").deliver([sample_events.put("a")], 1)


def test_a_topic_of_a_template_without_partitions_is_as_one_that_is_not_there() -> None:
    [outcome] = target("events-{bucket}").deliver([sample_events.put("a")], 1)
    assert isinstance(outcome, Failed)
    assert "topic events-images: UnknownTopicOrPartitionError" in outcome.reason
