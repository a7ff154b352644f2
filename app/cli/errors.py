"""Describe why a command failed, also where the API refused, or the supervisor could not start a process."""

from app.api import Refused
from app.cli_common import describe_errors
from app.config.errors import BadSettings, Problem
from app.supervisor.start import CannotStart, RedisMissing


def describe_exception(error: Exception) -> str:
    """Return one sentence, or one line for each of several problems, without secrets and stack traces."""
    if isinstance(error, Refused):
        return _describe_refusal(error)
    return str(error) if isinstance(error, CannotStart | RedisMissing) else describe_errors.describe_exception(error)


def _describe_refusal(refused: Refused) -> str:
    if errors := refused.body.get("errors"):
        problems = [Problem(error["field"], error["value"], error["problem"], error["hint"]) for error in errors]
        return describe_errors.describe_settings_error(BadSettings(problems))
    hint = "; set a valid token with BUCKETWIRE_TOKEN or --token" if refused.status in (401, 403) else ""
    return f"{refused}{hint}"
