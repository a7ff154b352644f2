"""Build the requests of a webhook: body, headers, signature (reference §4.2)."""

import hashlib
import importlib.metadata
from binascii import Error as Base64Error
from collections.abc import Sequence
from datetime import UTC, datetime

from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook
from urllib3.util import SKIP_HEADER, parse_url

from app.config.targets.webhook import WebhookSettings
from app.events.model import Event, trace_fields
from workers.targets import call_trace, cloudevents
from workers.targets.base import TargetUnavailable
from workers.targets.http_pool import basic_auth
from workers.targets.messages import message_format

USER_AGENT = f"Bucketwire/{importlib.metadata.version('bucketwire')}"


class RequestFormat:
    """Bodies and headers by a target's settings. Raises `TargetUnavailable` for a signing secret that is no base64."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._format = message_format(settings, cloudevents.HTTP)
        # A receiver of batches gets nothing else: one event, too, is a batch then.
        self._is_batch = settings.payload == "cloudevents" and settings.events_per_post > 1
        self._headers = _headers(settings, cloudevents.BATCH if self._is_batch else self._format.content_type)
        self._templates = [(name, value) for name, value in settings.headers if value.fixed is None]
        self._path = settings.path
        self._signers = _signers(settings.signing_secrets)

    def target(self, endpoint: str, event: Event) -> str:
        """Return the request target for an event. Raises `BadValue` if the template for the path gives no path."""
        if not self._path:
            return endpoint
        path, mark, query = endpoint.partition("?")
        return path.rstrip("/") + self._path.of(event) + mark + query

    def build(self, events: Sequence[Event]) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of the request for these events.

        Raises `BadValue` if a template gives no valid header.
        """
        body = self._body(events)
        headers = dict(self._headers)
        for name, template in self._templates:
            headers[name] = template.of(events[0])
        if trace := _trace(events):
            headers |= trace_fields(trace)
        if self._format.headers and not self._is_batch:
            headers |= self._format.headers(events[0])
        if self._signers:
            headers |= self._signature(_id(events), body)
        return body.encode(), headers

    def _body(self, events: Sequence[Event]) -> str:
        """Return a batch, one event's message, or of several MinIO messages what AWS sends.

        No single name and key is true of several events. A receiver that reads only the top-level name and key then
        fails and gets the events one by one; otherwise it would miss all but one.
        """
        if self._is_batch:
            return cloudevents.batch(events)
        if len(events) == 1:
            return self._format.body(events[0])
        return f'{{"Records":[{",".join([event.record for event in events])}]}}'

    def _signature(self, id_: str, body: str) -> dict[str, str]:
        """Sign (Standard Webhooks) with every secret, so that a receiver may have the old or the new one."""
        now = datetime.now(UTC)
        return {
            "webhook-id": id_,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signer.sign(id_, now, body) for signer in self._signers),
        }


def authorization(token: str) -> str | None:
    """Return the header for an `auth_token`: scheme and token unchanged, a lone token as bearer, else none (§4.2)."""
    words = token.split()
    if len(words) == 2:
        return token.strip()
    return f"Bearer {words[0]}" if len(words) == 1 else None


def _id(events: Sequence[Event]) -> str:
    """Return the event's id; for several events an id that is the same whenever the same events go together."""
    if len(events) == 1:
        return events[0].id
    return hashlib.sha256("".join([event.id for event in events]).encode()).hexdigest()[:32]


def _trace(events: Sequence[Event]) -> str:
    """Return the trace context of a request: that of its event; for several that of the call, or the one they share."""
    trace = events[0].trace
    if len(events) > 1 and (of_call := call_trace.current()):
        return of_call
    return trace if not trace or all(event.trace == trace for event in events) else ""


def _headers(settings: WebhookSettings, content_type: str) -> dict[str, str]:
    """Return the headers of every request; `headers` of the settings replace those of the same name."""
    # MinIO's requests have no Accept-Encoding header; urllib3 would add `identity`.
    headers = {"Content-Type": content_type, "User-Agent": USER_AGENT, "Accept-Encoding": SKIP_HEADER}
    login = parse_url(settings.endpoint).auth
    if value := authorization(settings.auth_token):
        headers["Authorization"] = value
    elif login:
        headers["Authorization"] = basic_auth(login)
    replaced = {name.lower() for name, _ in settings.headers}
    return {name: value for name, value in headers.items() if name.lower() not in replaced} | dict(settings.headers)


def _signers(secrets: Sequence[str]) -> list[Webhook]:
    signers = []
    for number, secret in enumerate(secrets, 1):
        try:
            signers.append(Webhook(secret))
        except (Base64Error, ValueError, EmptyWebhookSecretError) as error:
            raise TargetUnavailable(
                f"signing_secret: number {number} is not base64 text, with or without whsec_ before it"
            ) from error
    return signers
