"""Redact target secrets from outcome reasons, whatever text of a remote or a driver the reasons repeat."""

import base64
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import parse_qsl, unquote, urlsplit

from app.config.errors import REDACTED
from app.config.fields.addresses import WebhookUrl
from app.config.fields.fields import Field, fields_of
from app.config.targets.base import TargetSettings
from app.config.targets.mysql import MysqlSettings
from app.config.targets.postgresql import PostgresSettings
from app.config.targets.postgresql_dsn import secrets_in
from app.config.targets.webhook import WebhookSettings
from app.events.model import Event
from workers.delivery.outcomes import Delivered, NotAttempted, Outcome
from workers.targets.base import NO_LEASE, LeaseCheck, LeaseExpired, Target, TargetUnavailable

_SHORTEST = 4  # shorter secrets are not replaced, as that would also hide harmless words
_TELLING = re.compile(r"(?i)pass|token|secret|key|sig|auth")


class RedactingTarget:
    """Wraps a target and redacts its secrets from all reasons; everything else is passed through."""

    def __init__(self, target: Target, settings: TargetSettings) -> None:
        self._target = target
        found = sorted({word for word in secrets_of(settings) if len(word) >= _SHORTEST}, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, found))) if found else None

    def open(self) -> None:
        """Open the target. Raises `TargetUnavailable` with a redacted reason."""
        with self._redacting_errors():
            self._target.open()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Deliver with redacted reasons. Raises `TargetUnavailable` and `LeaseExpired`."""
        with self._redacting_errors():
            outcomes = self._target.deliver(events, window, lease)
        if self._secrets is None or all(type(outcome) is Delivered for outcome in outcomes):
            return outcomes
        return [self._redact(outcome) for outcome in outcomes]

    def close(self) -> None:
        """Close the target."""
        self._target.close()

    def _redact(self, outcome: Outcome) -> Outcome:
        return (
            outcome
            if isinstance(outcome, Delivered | NotAttempted)
            else replace(outcome, reason=self._hidden(outcome.reason))
        )

    @contextmanager
    def _redacting_errors(self) -> Iterator[None]:
        try:
            yield
        except LeaseExpired:
            raise
        except TargetUnavailable as error:
            raise TargetUnavailable(self._hidden(error.reason), error.retry_after, pause=error.pause) from None
        except Exception as error:
            # A defect, which is logged with its traceback, and that may quote the driver's arguments.
            said = "".join(traceback.format_exception(error))
            if self._hidden(said) == said:
                raise
            words = self._hidden(f"{type(error).__name__}: {error}")
            raise RuntimeError(words).with_traceback(error.__traceback__) from None

    def _hidden(self, reason: str) -> str:
        return self._secrets.sub(REDACTED, reason) if self._secrets else reason


def secrets_of(settings: TargetSettings) -> Iterator[str]:
    """Yield every secret of a target, including those within URLs and connection strings."""
    for name, key in fields_of(type(settings)).items():
        value = str(getattr(settings, name))
        if value:
            yield from _within(key, value)
    if isinstance(settings, WebhookSettings):
        for _, value in settings.headers:
            yield value
            yield from value.split()
    if isinstance(settings, MysqlSettings):
        yield settings.dsn.password
    if isinstance(settings, PostgresSettings):
        yield from secrets_in(settings.dsn)


def _within(key: Field, value: str) -> Iterator[str]:
    if key.secret:
        yield value
        for word in value.split():
            yield word
            yield word.removeprefix("whsec_")
    if isinstance(key.kind, WebhookUrl):
        yield from key.kind.secrets_in(value)
    if "://" in value and (key.refers or key.kind.shown(value) != value):
        parts = urlsplit(value)
        if parts.password:
            yield parts.password
            yield unquote(parts.password)
            login = f"{unquote(parts.username or '')}:{unquote(parts.password)}"
            yield base64.b64encode(login.encode()).decode()
        yield from (text for name, text in parse_qsl(parts.query) if _TELLING.search(name))
