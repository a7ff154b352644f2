"""What is said to a person when a command cannot do what it was asked to."""

from collections.abc import Callable, Sequence
from typing import Any

import click
import sqlalchemy as sa

from app.config.errors import BadSettings, BadValue
from app.outbox.engine.database import DatabaseUnavailable, describe_error
from app.outbox.registry import ReadOnlyTarget, TargetInUse, UnknownTarget
from app.outbox.tokens import TokenExists, UnknownToken
from app.supervisor.embedded_broker import RedisMissing
from app.supervisor.start import CannotStart


class CommandError(Exception):
    """The command stops; the message says why and what to do."""


_DESCRIBED = (  # these say what is wrong and what to do by themselves
    CommandError, CannotStart, RedisMissing, ReadOnlyTarget, TargetInUse, TokenExists, UnknownTarget, UnknownToken,
)  # fmt: skip


def describe_exception(error: Exception) -> str:
    """One sentence, or one line for each problem where there are several. Never a secret, never a stack trace."""
    for kind, words in _DESCRIPTIONS:
        if isinstance(error, kind):
            return words(error)
    return f"{type(error).__name__}: {error}; this is a bug, BUCKETWIRE_DEBUG=1 shows where"


def describe_settings_error(error: BadSettings) -> str:
    """The problems of some settings: in the line where there is one, below each other where there are more."""
    about = f"{error.subject}: " if error.subject else ""
    if len(error.problems) == 1:
        return about + str(error.problems[0])
    return "\n  ".join([f"{about}these settings cannot be used:", *map(str, error.problems)])


def _describe_value_error(error: BadValue) -> str:
    return f"{error.problem}; {error.hint}" if error.hint else error.problem


# The first that fits is taken, so a kind stands before those that it belongs to.
_DESCRIPTIONS: Sequence[tuple[type[Exception] | tuple[type[Exception], ...], Callable[[Any], str]]] = (
    (BadSettings, describe_settings_error),
    (BadValue, _describe_value_error),
    (click.ClickException, click.ClickException.format_message),
    (_DESCRIBED, str),
    (
        DatabaseUnavailable,
        lambda error: (
            f"the outbox database cannot be used: {describe_error(error)}; BUCKETWIRE_DATABASE_URL says where it is"
        ),
    ),
    (sa.exc.SQLAlchemyError, lambda error: f"the outbox database refuses: {describe_error(error)}"),
    (OSError, lambda error: f"{error.filename}: {error.strerror}" if error.filename else str(error)),
)
