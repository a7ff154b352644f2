"""Describe why a command failed, also where the supervisor could not start a process."""

from app.cli_common import errors
from app.supervisor.embedded_broker import RedisMissing
from app.supervisor.start import CannotStart


def describe_exception(error: Exception) -> str:
    """Return one sentence, or one line for each of several problems, without secrets and stack traces."""
    return str(error) if isinstance(error, CannotStart | RedisMissing) else errors.describe_exception(error)
