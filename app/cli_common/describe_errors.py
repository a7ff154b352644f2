"""Describe to a person why a command failed."""

from collections.abc import Callable, Sequence
from typing import Any

import click
import sqlalchemy as sa

from app.cli_common import CommandError
from app.config.errors import BadSettings, BadValue
from app.outbox.declared import UnknownTarget
from app.outbox.engine.database import DatabaseUnavailable, describe_error
from app.outbox.errors import AlreadyRunning, NothingToRepair, TokenExists, UnknownRun, UnknownToken
from app.outbox.registry import ReadOnlyTarget, TargetInUse
from app.outbox.schema_version import SchemaRefused

# The messages of these say what is wrong and what to do.
_SELF_DESCRIBING = (
    CommandError, AlreadyRunning, NothingToRepair, ReadOnlyTarget, TargetInUse, TokenExists, UnknownRun, UnknownTarget,
    UnknownToken, SchemaRefused,
)  # fmt: skip


def describe_exception(error: Exception) -> str:
    """Return one sentence, or one line per problem where there are several. Never a secret, never a stack trace."""
    for kind, describe in _DESCRIPTIONS:
        if isinstance(error, kind):
            return describe(error)
    return f"{type(error).__name__}: {error}; this is a bug, BUCKETWIRE_DEBUG=1 shows the stack trace"


def describe_settings_error(error: BadSettings) -> str:
    """Return the problems of some settings: a single one in the same line, several below each other."""
    about = f"{error.subject}: " if error.subject else ""
    if len(error.problems) == 1:
        return about + str(error.problems[0])
    return "\n  ".join([f"{about}these settings are invalid:", *map(str, error.problems)])


def _describe_value_error(error: BadValue) -> str:
    return f"{error.problem}; {error.hint}" if error.hint else error.problem


# The first that fits is taken, so a kind stands before those that it belongs to.
_DESCRIPTIONS: Sequence[tuple[type[Exception] | tuple[type[Exception], ...], Callable[[Any], str]]] = (
    (BadSettings, describe_settings_error),
    (BadValue, _describe_value_error),
    (click.ClickException, click.ClickException.format_message),
    (_SELF_DESCRIBING, str),
    (
        DatabaseUnavailable,
        lambda error: f"the outbox database is unavailable: {describe_error(error)}; check BUCKETWIRE_DATABASE_URL",
    ),
    (sa.exc.SQLAlchemyError, lambda error: f"the outbox database reports an error: {describe_error(error)}"),
    (OSError, lambda error: f"{error.filename}: {error.strerror}" if error.filename else str(error)),
)
