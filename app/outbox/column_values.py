"""Special values of the outbox's columns, and error reasons made storable for every database."""

NEVER = 1 << 62  # not_before of an event that waits behind an earlier event of the same object
NO_LIMIT = 1 << 62  # queue_limit of a target whose undelivered events are not limited
REVOKED = "revoked"  # lease_token: no worker may claim or settle until the lease has expired
WHOLE_LOG = 0  # replay_id of the cursors that follow the log itself

# Ten attempts as JSON, with escaped quotes and backslashes, fit MySQL's TEXT of 65,535 bytes.
MAX_REASON_CHARACTERS, _MAX_REASON_BYTES = 2_000, 4_000
UNSTORABLE_REASON = "the outbox database refused to store the reason"


def clean_reason(text: str) -> str:
    """Return the reason in one line, without control characters, with at most 2,000 characters and 4,000 UTF-8 bytes.

    Line breaks and tabs become spaces. Other unprintable characters (NUL, escape characters, lone surrogates, marks
    that reverse the text direction) become U+FFFD.
    """
    line = "".join(
        char if char.isprintable() else " " if char.isspace() else "\ufffd" for char in text[:MAX_REASON_CHARACTERS]
    )
    return line.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
