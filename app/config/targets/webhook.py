"""The settings of webhooks (reference §4.2)."""

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Self
from urllib.parse import unquote, urlsplit

from app.config.errors import BadValue, Problem
from app.config.fields.addresses import WebhookUrl
from app.config.fields.field_types import Duration, FieldType, Number, Text, Toggle
from app.config.fields.fields import declared, setting
from app.config.fields.http_headers import Headers, HttpHeaders
from app.config.fields.templates import Place, Templated, percent
from app.config.targets.base import MessageSettings, TlsSettings


class UrlPath(Text):
    """The end of a URL's path."""

    label = "path"

    def parse(self, text: str) -> str:
        if not re.fullmatch(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)+", super().parse(text)):
            raise BadValue("is not the path of a URL", "begin it with / and write other characters as %20 or the like")
        if any(unquote(segment) in (".", "..") for segment in text.split("/")):
            raise BadValue("has a segment . or .., which leads elsewhere", "leave it out")
        return text


class SigningSecrets(FieldType[str]):
    """Space-separated secrets of Standard Webhooks, the newest first: `whsec_` and base64 of 24 to 64 bytes."""

    label = "space-separated `whsec_…`"
    empty = ""
    separator = " "

    def parse(self, text: str) -> str:
        """Return the secrets, separated by single spaces."""
        for secret in text.split():
            try:
                size = len(base64.b64decode(secret.removeprefix("whsec_"), validate=True))
            except ValueError:
                size = 0
            if not secret.startswith("whsec_") or not 24 <= size <= 64:
                raise BadValue(
                    "is not a signing secret of Standard Webhooks",
                    'write whsec_ and the output of "openssl rand -base64 32"',
                )
        return " ".join(text.split())

    def secrets_in(self, value: str) -> Iterator[str]:
        return (secret.removeprefix("whsec_") for secret in value.split())


@declared
class WebhookSettings(
    MessageSettings,
    TlsSettings,
    type_name="webhook",
    title="Webhook",
    example={"endpoint": "https://example.com/events"},
):
    """Webhook (reference §4.2)."""

    endpoint: str = setting(
        WebhookUrl(), about="the URL that receives the events by POST; encrypted at rest, and shown without its path"
    )
    auth_token: str = setting(
        Text(ascii_only=True),
        default="",
        secret=True,
        about="one word is sent as a bearer token, two words unchanged, any other number of words not at all",
    )
    signing_secret: str = setting(
        SigningSecrets(), default="", secret=True, about="sign each request as Standard Webhooks; several for rotation"
    )
    headers: Headers = setting(
        HttpHeaders(),
        default="",
        about="further headers of each request: X-Bucket: {bucket}; X-Api-Key: env:HOOK_KEY; their values are secrets",
    )
    path: Place = setting(
        Templated(UrlPath(), "path", percent("[^A-Za-z0-9._~/-]")),
        default="",
        about="what follows the endpoint's path, such as /{bucket}/{key}",
    )
    allow_private: bool = setting(
        Toggle(),
        default="off",
        about="allow the endpoint's name to resolve to loopback, private and link-local addresses",
    )
    read_timeout: float = setting(Duration(0.001, 3600), default="10s", about="time limit for the answer to a request")
    events_per_post: int = setting(
        Number(1, 1000), default="1", about="most events in one request; with more than 1 the body differs from MinIO's"
    )

    @property
    def uses_tls(self) -> bool:
        """Whether a certificate may be needed: always, as a proxy may be reached by TLS for an endpoint without."""
        return True

    @property
    def signing_secrets(self) -> tuple[str, ...]:
        """The signing secrets, the newest first."""
        return tuple(self.signing_secret.split())

    def served(self, *, allow_private: bool) -> Self:
        return replace(self, allow_private=self.allow_private or allow_private)

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if any(name.lower() == "authorization" for name, _ in self.headers):
            if self.auth_token:
                yield Problem("headers", "", "has Authorization, and auth_token is set", "keep one of them")
            if urlsplit(self.endpoint).username is not None:
                yield Problem("headers", "", "has Authorization, and endpoint has a login", "keep one of them")
        for name, places in (("path", [self.path]), ("headers", [value for _, value in self.headers])):
            if self.events_per_post > 1 and any(place.fixed is None for place in places):
                hint = "set events_per_post=1, or write {{ for a brace"
                yield Problem(name, "", "is a template, and the events of one request share it", hint)
        if self.payload == "cloudevents-binary" and self.events_per_post > 1:
            yield Problem(
                "payload",
                self.payload,
                "is not possible with several events in one request",
                "set payload=cloudevents, or events_per_post=1",
            )
