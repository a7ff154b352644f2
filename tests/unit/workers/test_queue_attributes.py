"""What the attributes of an SQS queue say of messages that it loses."""

from __future__ import annotations

import pytest

from workers.systems.sqs.source import find_risks

DAY = 86_400


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({}, []),
        ({"MessageRetentionPeriod": str(14 * DAY), "RedrivePolicy": '{"maxReceiveCount":100}'}, []),
        ({"MessageRetentionPeriod": str(4 * DAY)}, []),
        ({"MessageRetentionPeriod": "60"}, ["is 60 s"]),
        ({"RedrivePolicy": '{"maxReceiveCount":"3"}'}, ["maxReceiveCount=3"]),
        ({"RedrivePolicy": '{"maxReceiveCount":3}', "MessageRetentionPeriod": "60"}, ["maxReceiveCount=3", "is 60 s"]),
        ({"RedrivePolicy": "{", "MessageRetentionPeriod": "x"}, []),
        ({"RedrivePolicy": "[]", "MessageRetentionPeriod": None}, []),
        ({"RedrivePolicy": '{"maxReceiveCount":null}'}, []),
    ],
)
def test_a_queue_that_loses_messages_too_soon_is_named(attributes: dict[str, object], words: list[str]) -> None:
    risks = find_risks(attributes)
    assert len(risks) == len(words)
    assert all(word in risk for word, risk in zip(words, risks, strict=True))
