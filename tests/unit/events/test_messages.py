"""What is read in the messages of a queue."""

from __future__ import annotations

import pytest

from app.events.limits import Limits
from app.events.minio_json import YEAR_10000, timestamp
from app.events.parsing import Message, read_message

WITHOUT_TIME = b'{"Records":[{"eventName":"s3:ObjectCreated:Put","s3":{"bucket":{"name":"b"},"object":{"key":"k"}}}]}'


@pytest.mark.parametrize(
    ("sent_at", "time"),
    [(0, 0), (1_700_000_000_000, 1_700_000_000_000), (YEAR_10000 - 1, YEAR_10000 - 1), (YEAR_10000, 0), (2**63 - 1, 0)],
)
def test_an_event_without_a_time_has_that_of_its_message_if_it_can_be_written(sent_at: int, time: int) -> None:
    """Producers choose the time of a message: microseconds are a year that no payload can have."""
    [event] = read_message(Message(WITHOUT_TIME, sent_at=sent_at), Limits(), None).events
    assert event.time == time
    assert timestamp(event.time).endswith("Z")
