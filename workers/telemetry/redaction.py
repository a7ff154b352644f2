"""Redact target secrets from outcomes, whatever text of a remote or a driver these repeat, and from exchanges.

An answer may repeat the request, so what the request's headers hide is hidden in the answer, too; and first is hidden,
then shortened, because half a secret would not be recognised.
"""

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from app.config.errors import REDACTED
from app.config.secret_texts import Redaction, SecretTexts
from app.config.targets.base import TargetSettings
from app.events.model import Event
from workers.delivery import retry
from workers.delivery.outcomes import Delivered, Exchange, HttpMessage, NotAttempted, Outcome
from workers.targets.base import NO_LEASE, LeaseCheck, LeaseExpired, Target, TargetUnavailable

# The request's headers that no setting fills. Values of the others may be secrets.
_KNOWN = re.compile(r"ce-.*|content-type|traceparent|tracestate|user-agent|webhook-id|webhook-timestamp", re.IGNORECASE)
_SECRET = re.compile(r"auth|cookie|credential|key|password|secret|session|signature|token", re.IGNORECASE)
_OF_LOGIN = re.compile(r"(?:proxy-)?authorization|webhook-signature", re.IGNORECASE)
_MIN_LOGIN_CHARACTERS = 8  # of a part of a login, which is hidden in the answer: shorter ones are `Basic` and the like
_MAX_SECRET_CHARACTERS = 4096  # of a body that ends early, which may end within a secret


def kept(exchange: Exchange, hide: Callable[[str], str]) -> Exchange:
    """Return what is kept of an exchange; `hide` removes the target's secrets from a text."""
    logins = SecretTexts(_logins(exchange.request.headers))

    def clean(text: str) -> str:
        return _printable(hide(logins.hide(text)))

    request, response = exchange.request, exchange.response
    sent = {name: value if _KNOWN.fullmatch(name) else REDACTED for name, value in request.headers.items()}
    request = _shortened(replace(request, headers=sent), clean)
    if response is None:
        return Exchange(request)
    answered = {name: _answered(name, value) for name, value in response.headers.items()}
    return Exchange(request, _shortened(replace(response, headers=answered), clean))


def _logins(headers: Mapping[str, str]) -> Iterator[str]:
    for name, value in headers.items():
        if _OF_LOGIN.fullmatch(name):
            yield from (part for part in (value, *re.split(r"[\s,]+", value)) if len(part) >= _MIN_LOGIN_CHARACTERS)


def _answered(name: str, value: str) -> str:
    """Return the value of an answer's header as it may be shown; an address loses its query and its login."""
    if _SECRET.search(name):
        return REDACTED
    return (
        re.sub(r"(?<=//)[^/?#@\s]*@|[?#]\S*", "", value) if name.lower() in ("location", "link", "refresh") else value
    )


def _shortened(message: HttpMessage, clean: Callable[[str], str]) -> HttpMessage:
    headers: dict[str, str] = {}
    left = retry.MAX_EXCHANGE_HEADER_BYTES
    for name, value in message.headers.items():
        short_name, short_value = _cut(clean(name), left), _cut(clean(value), left)
        left -= len(short_name.encode()) + len(short_value.encode())
        if left < 0:
            break
        headers[short_name] = short_value
    body = clean(message.body)
    if len(message.body.encode()) < message.size:
        body = body[:-_MAX_SECRET_CHARACTERS]
    return HttpMessage(
        _cut(clean(message.line), retry.MAX_EXCHANGE_LINE_BYTES),
        headers,
        _cut(body, retry.MAX_EXCHANGE_BODY_BYTES),
        message.size,
    )


def _printable(text: str) -> str:
    """Return the text with line breaks and tabs, and without other characters that a terminal or database minds."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


def _cut(text: str, most: int) -> str:
    """Return the beginning that has at most so many bytes in UTF-8."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")


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
