"""Redact target secrets from outcomes, whatever text of a remote or a driver these repeat."""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from app.config.fields.fields import Declared
from app.config.targets.base import TargetSettings
from app.events.model import Event
from workers.delivery.outcomes import Delivered, NotAttempted, Outcome
from workers.targets.base import NO_LEASE, LeaseCheck, LeaseExpired, Target, TargetUnavailable
from workers.telemetry.exchanges import kept
from workers.telemetry.secret_texts import SecretTexts

_MIN_CHARACTERS = 4  # shorter secrets are not replaced, as that would also hide harmless words


class Redaction:
    """Hides the secrets of some settings in texts."""

    def __init__(self, settings: Declared) -> None:
        self._secrets = SecretTexts(secret for secret in settings.secrets() if len(secret) >= _MIN_CHARACTERS)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def hide(self, text: str) -> str:
        """Return the text without the secrets."""
        return self._secrets.hide(text)


class RedactingTarget:
    """Wraps a target and redacts its secrets from all reasons and exchanges, which it shortens too."""

    def __init__(self, target: Target, settings: TargetSettings) -> None:
        self._target = target
        self._redaction = Redaction(settings)

    def open(self) -> None:
        """Open the target. Raises `TargetUnavailable` with a redacted reason."""
        with self._redacting_errors():
            self._target.open()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Deliver with redacted reasons. Raises `TargetUnavailable` and `LeaseExpired`."""
        with self._redacting_errors():
            outcomes = self._target.deliver(events, window, lease)
        if all(type(outcome) is Delivered for outcome in outcomes):
            return outcomes
        redacted = {id(outcome): self._redact(outcome) for outcome in {id(one): one for one in outcomes}.values()}
        return [redacted[id(outcome)] for outcome in outcomes]  # the events of one request share theirs

    def close(self) -> None:
        """Close the target."""
        self._target.close()

    def _redact(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Delivered | NotAttempted):
            return outcome
        exchange = None if outcome.exchange is None else kept(outcome.exchange, self._redaction.hide)
        return replace(outcome, reason=self._hidden(outcome.reason), exchange=exchange)

    @contextmanager
    def _redacting_errors(self) -> Iterator[None]:
        try:
            yield
        except LeaseExpired:
            raise
        except TargetUnavailable as error:
            raise TargetUnavailable(
                self._hidden(error.reason), error.retry_after, pause=error.pause, may_arrive=error.may_arrive
            ) from None
        except Exception as error:
            # A defect, which is logged with its traceback, and that may quote the driver's arguments.
            report = "".join(traceback.format_exception(error))
            if self._hidden(report) == report:
                raise
            message = self._hidden(f"{type(error).__name__}: {error}")
            raise RuntimeError(message).with_traceback(error.__traceback__) from None

    def _hidden(self, reason: str) -> str:
        return self._redaction.hide(reason)
