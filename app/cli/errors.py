"""Describe why a command failed, also where the supervisor could not start a process."""

from app.cli_common import errors
from app.supervisor.embedded_broker import RedisMissing
from app.supervisor.start import CannotStart


def describe_exception(error: Exception) -> str:
    """Return one sentence, or one line per problem where there are several. Never a secret, never a stack trace."""
    return str(error) if isinstance(error, CannotStart | RedisMissing) else errors.describe_exception(error)
