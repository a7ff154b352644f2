"""Whose fault a broker's refusal is."""

import pytest
from kafka import errors

from workers.delivery.outcomes import Outcome, Rejected, Unavailable
from workers.systems.kafka.client import outcome_of_error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.MessageSizeTooLargeError, Rejected),
        (errors.RecordListTooLargeError, Rejected),
        (errors.InvalidRecordError, Unavailable),  # a broker that validates schemas refuses every message
        (errors.PolicyViolationError, Unavailable),
        (errors.UnsupportedForMessageFormatError, Unavailable),
        (errors.TopicAuthorizationFailedError, Unavailable),
        (errors.InvalidTimestampError, Unavailable),
    ],
)
def test_only_what_a_message_has_by_itself_is_its_own_fault(error: type[Exception], kind: type[Outcome]) -> None:
    assert type(outcome_of_error(error(), "why", 100)) is kind
