"""Values of the outbox's columns that have a meaning of their own."""

NEVER = 1 << 62  # not_before of an event that waits behind an earlier one of its object
NO_LIMIT = 1 << 62  # queue_limit of a target that may have any number of undelivered events
WHOLE_LOG = 0  # replay_id of the cursors that follow the log itself
