"""What the outbox answers to a request that it cannot carry out.

The errors stand apart from the modules that raise them, so that whoever describes them need not import these.
"""

from collections.abc import Iterable

from app.config.arn import SourceId
from app.config.errors import nearest_name, suggest_name


class BadSelection(ValueError):
    """An invalid selection: `field` is the invalid member, `problem` continues the sentence, `hint` is the advice."""

    def __init__(self, field: str, problem: str, hint: str) -> None:
        super().__init__(f"{field} {problem}; {hint}")
        self.field = field
        self.problem = problem
        self.hint = hint


class UnknownReplay(LookupError):
    """No replay has that number."""

    def __init__(self, replay_id: int) -> None:
        super().__init__(f"there is no replay {replay_id}; `bucketwire replay --list` shows those there are")


class UnknownRun(LookupError):
    """There is no run of this name."""

    def __init__(self, run: str) -> None:
        super().__init__(f"there is no reconciliation {run}")


class UnseenBucket(LookupError):
    """No event, rule, setting or earlier run has named the bucket; the message names the nearest of `known`."""

    def __init__(self, bucket: str, known: Iterable[str] = ()) -> None:
        close = nearest_name(bucket, known)
        self.detail = f"no event, rule, setting or run has named the bucket {bucket}"
        meant = "to compare it all the same, give --unknown-bucket (`unknown_bucket`: true)"
        super().__init__(f"{self.detail}; {f'did you mean {close}? ' if close else ''}{meant}")


class AlreadyRunning(Exception):
    """Another run reconciles or backfills this target with this bucket; the message says when it started."""


class NothingToRepair(Exception):
    """The run has not ended with drift."""


class LogLost(Exception):
    """The log has no event at a seq that somebody has read: the outbox has become an older state of itself."""

    def __init__(self, seq: int, last_seq: int) -> None:
        super().__init__(
            f"the event log ends at {last_seq} and had reached {seq}: the outbox was restored, or has failed over; "
            "read the objects again"
        )


class TokenExists(Exception):
    """A token of that name exists. A token cannot be shown again, only revoked and created again."""


class UnknownToken(LookupError):
    """The database has no token of that name."""


class TokensUnknown(Exception):
    """This process has not been able to read the tokens in the database since it started, so it can verify none."""


class UnknownSource(LookupError):
    """No source of that type and name is configured; the message names the nearest of `known`."""

    def __init__(self, source: SourceId, known: Iterable[SourceId] = ()) -> None:
        super().__init__(f"there is no source {source}; {suggest_name(source, known, 'bucketwire source ls')}")


class ReadOnlySource(Exception):
    """The source is configured in the environment and can only be changed there."""

    def __init__(self, source: SourceId) -> None:
        super().__init__(f"{source} is set by BUCKETWIRE_SOURCE_… variables; change the variables")


class SourceInUse(Exception):
    """Removing the source would lose rejected messages; the message says how many."""


class StillRejected(Exception):
    """The message still has no valid events; the message of this exception is the reason."""


class UnknownMessage(LookupError):
    """The source has no rejected message of this number."""
