"""The settings of webhooks (reference §4.2), among them request headers, whose values may be secrets."""

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Self
from urllib.parse import unquote, urlsplit

from app.config.errors import REDACTED, BadValue, Problem
from app.config.fields.addresses import WebhookUrl
from app.config.fields.field_types import Duration, FieldType, Number, Text, Toggle
from app.config.fields.fields import declared, setting
from app.config.fields.secret_refs import is_secret_ref
from app.config.fields.templates import Place, Templated, escaped, percent
from app.config.targets.base import MessageSettings, TlsSettings

Headers = tuple[tuple[str, Place], ...]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")  # a token of RFC 9110
_VALUE = re.compile(r"[\x20-\x7e]+")
_SEPARATOR = re.compile(r";(?:\s+|$)")
_MAX_HEADERS = 50
_MAX_CHARACTERS = 8192  # of all headers, as many servers accept
# Those of one connection (RFC 9110), and those that frame or describe the body, which nobody may replace.
_OF_CONNECTION = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
    ]
)
_OF_REQUEST = frozenset(["host", "content-length", "content-type", "content-encoding"])
_OF_EVENT = frozenset(["traceparent", "tracestate", "webhook-id", "webhook-timestamp", "webhook-signature"])
_LINE = "a header's value is one line of printable ASCII"
_HINT = "write Name: value; Name: value, or a JSON object"


class HeaderValue(FieldType[str]):
    """What a header may have as its value."""

    label = "one line of ASCII"
    empty = ""

    def parse(self, text: str) -> str:
        if not _VALUE.fullmatch(text) or len(text) > _MAX_CHARACTERS:
            raise BadValue("is not a header's value", _LINE)
        return text


# As CloudEvents are written into headers, too (HTTP binding, §3.1.3.2).
_TEMPLATE = Templated(HeaderValue(), "a header", percent('[^\x21-\x7e]|["%]'))


class HttpHeaders(FieldType[Headers]):
    """`Name: value`, separated by a semicolon and a space, or a JSON object. Any value may be a secret.

    So only names and references are ever shown. A value may be a reference, and so may the whole setting. A value is a
    template; what a reference leads to is not.
    """

    label = "`Name: value; …` or JSON"
    empty = ()
    holds_secrets = True
    is_mapping = True

    def parse(self, text: str) -> Headers:
        pairs = _split(text)
        if len(pairs) > _MAX_HEADERS or sum(len(name) + len(value) + 4 for name, value in pairs) > _MAX_CHARACTERS:
            raise BadValue(f"has more than {_MAX_HEADERS} headers or {_MAX_CHARACTERS} characters", "leave some out")
        headers: dict[str, tuple[str, Place]] = {}
        for number, (name, value) in enumerate(pairs, 1):
            _check(number, name, value)
            if name.lower() in headers:
                raise BadValue(f"names a header twice (number {number})", "give it once")
            try:
                headers[name.lower()] = name, _TEMPLATE.parse(value)
            except BadValue as error:
                raise BadValue(f"has a value (number {number}) that {error.problem}", error.hint) from None
        return tuple(headers.values())

    def resolve(self, text: str, resolve: Callable[[str], str]) -> str:
        if text.startswith(("env:", "file:")):
            pairs = _split(resolve(text))  # which refuses what only looks like a reference
            return _written([(name, escaped(value)) for name, value in pairs], as_json=True)
        return _written([(name, _resolved(value, resolve)) for name, value in _split(text)], as_json=True)

    def shown(self, text: str) -> str:
        """Return the headers' names, and values that are references; `*redacted*` for a text that is not read so."""
        if not text or is_secret_ref(text):
            return text
        try:
            pairs = _split(text)
        except BadValue:
            return REDACTED
        if not all(_NAME.fullmatch(name) for name, _ in pairs):
            return REDACTED
        shown = [(name, value if is_secret_ref(value) else REDACTED) for name, value in pairs]
        return _written(shown, as_json=_is_json(text))

    def secrets_in(self, value: Headers) -> Iterator[str]:
        for _, template in value:
            for text in template.literals:
                yield text
                yield from text.split()

    def restored(self, text: str, stored: str) -> str:
        """Return the text with the stored value of each header that was sent back as `*redacted*`."""
        if REDACTED not in text:
            return text
        try:
            known = {name.lower(): value for name, value in _split(stored)}
            pairs = _split(text)
        except BadValue:
            return text
        kept = [(name, known.get(name.lower(), value) if value == REDACTED else value) for name, value in pairs]
        return _written(kept, as_json=_is_json(text))


def _check(number: int, name: str, value: str) -> None:
    """Raise `BadValue` for a header that cannot be sent, or is not the user's to set. Messages quote neither part."""
    which, lowered = f"number {number}", name.lower()
    if not _NAME.fullmatch(name):
        raise BadValue(
            f"has a header ({which}) whose name is not a token", "write up to 128 ASCII letters, digits and -"
        )
    if lowered in _OF_CONNECTION:
        raise BadValue(f"has a header ({which}) that belongs to the connection, {lowered}", "leave it out")
    if lowered in _OF_REQUEST or lowered in _OF_EVENT or lowered.startswith("ce-"):
        raise BadValue(f"has a header ({which}) that every request has a value for, {lowered}", "leave it out")
    if not value:
        raise BadValue(f"has a header ({which}) without a value", "give it one, or leave the header out")
    if not _VALUE.fullmatch(value):
        raise BadValue(
            f"has a value ({which}) with a line break, a control character or a character outside ASCII",
            _LINE,
        )


def _resolved(value: str, resolve: Callable[[str], str]) -> str:
    secret = resolve(value)
    return escaped(secret) if is_secret_ref(value) else secret


def _is_json(text: str) -> bool:
    return text.startswith("{")


def _split(text: str) -> list[tuple[str, str]]:
    """Return names and values, unchecked. Raises `BadValue`, also where it is unclear what belongs to a value."""
    if _is_json(text):
        return _split_json(text)
    pairs = []
    for number, part in enumerate(_SEPARATOR.split(text), 1):
        if not part.strip():
            continue
        name, colon, value = part.partition(":")
        if not colon:
            raise BadValue(f"has a part (number {number}) that is not Name: value", _HINT)
        if ";" in value:
            raise BadValue(
                f"has a ; without a space after it (part {number})",
                'separate headers by "; ", or write a value with ; in JSON: {"Name": "a;b"}',
            )
        pairs.append((name.strip(), value.strip()))
    return pairs


def _split_json(text: str) -> list[tuple[str, str]]:
    try:
        members = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        raise BadValue("begins with { and is not JSON", _HINT) from None
    # A list inside is an inner object; a JSON array cannot be the whole, which begins with a brace.
    if not all(isinstance(value, str) for _, value in members):
        raise BadValue("has a value that is not text", 'write {"Name": "value"}')
    return [(name.strip(), value.strip()) for name, value in members]


def _written(pairs: Sequence[tuple[str, str]], *, as_json: bool) -> str:
    """Return the headers as a text that `_split` reads as the same ones."""
    if as_json or any(";" in value for _, value in pairs):
        members = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in pairs)
        return f"{{{members}}}"
    return "; ".join(f"{name}: {value}" for name, value in pairs)


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
