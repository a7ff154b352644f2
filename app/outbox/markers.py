"""Special values of the outbox's columns."""

NEVER = 1 << 62  # not_before of an event that waits behind an earlier event of the same object
NO_LIMIT = 1 << 62  # queue_limit of a target whose undelivered events are not limited
REVOKED = "revoked"  # lease_token: no worker may claim or settle until the lease has expired
WHOLE_LOG = 0  # replay_id of the cursors that follow the log itself
