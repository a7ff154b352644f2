"""The settings of NATS (reference §4.5): core, JetStream and Streaming."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from app.config.errors import BadValue, Problem
from app.config.fields.addresses import HostPort, Hosts
from app.config.fields.field_types import Duration, FieldType, Number, Path, Text, Toggle
from app.config.fields.fields import Declared, declared, setting
from app.config.fields.templates import Place, Templated, percent
from app.config.targets.base import MessageSettings, check_certificate_pair, needing_tls


def check_subject(text: str) -> None:
    """Raise `BadValue` for what is no subject of NATS; wildcards are allowed."""
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise BadValue("contains a space or control character", "separate words by dots, such as minio.events")
    if not all(text.split(".")):
        raise BadValue("has an empty word", "separate words by single dots, without one at either end")
    if text.startswith("$"):
        raise BadValue("begins with $, as the server's own subjects do", "choose another first word")
    if len(text.encode()) > 1024:
        raise BadValue("is longer than 1024 bytes", "shorten it")


class Subject(FieldType[str]):
    """A NATS subject to publish to: words separated by dots, without wildcards, not one of the server's own."""

    label = "subject"
    empty = ""

    def parse(self, text: str) -> str:
        check_subject(text)
        if re.search(r"[*>]", text):
            raise BadValue("contains a wildcard, which is for subscribers", "name one subject, such as minio.events")
        return text


class ClusterId(FieldType[str]):
    """The id of a NATS Streaming cluster, by the server's own rule."""

    label = "letters, digits, `_`, `-`"
    empty = ""

    def parse(self, text: str) -> str:
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,255}", text):
            raise BadValue("is not a cluster id", "use only letters, digits, _ and -")
        return text


class Interval(Duration):
    """A duration; a bare number is seconds, because MinIO accepts nothing else for this key (§4.5)."""

    label = "duration, or seconds"

    def parse(self, text: str) -> float:
        return super().parse(f"{text}s" if text.isdecimal() else text)


@declared
class NatsConnection(Declared):
    """How to reach the servers of a cluster and log in, for whatever speaks NATS: a target or a source."""

    address: tuple[HostPort, ...] = setting(Hosts(4222), about="host:port of the servers of one cluster")
    subject: Any = setting(Subject(), about="the subject of the messages")
    username: str = setting(Text(), default="", about="NATS user; needs a password")
    password: str = setting(Text(), default="", secret=True, about="password of the user")
    token: str = setting(Text(), default="", secret=True, about="token, if the server asks for one instead")
    user_credentials: str = setting(
        Path(), default="", about="credentials file as nsc writes it: a user's JWT and NKEY seed"
    )
    nkey_seed: str = setting(Path(), default="", about="file with a user's NKEY seed")
    tls: bool = setting(
        Toggle(), default="off", about="require TLS; implied by tls_handshake_first, cert_authority and client_cert"
    )
    tls_skip_verify: bool = setting(Toggle(), default="off", about="do not verify the server's certificate")
    tls_handshake_first: bool = setting(
        Toggle(), default="off", about="start with the TLS handshake, for a server with handshake_first"
    )
    cert_authority: str = setting(
        Path(), default="", about="PEM file of the only authorities to trust; empty: the system's"
    )
    client_cert: str = setting(Path(), default="", about="PEM file of the client's certificate")
    client_key: str = setting(Path(), default="", about="PEM file of its key")
    ping_interval: float = setting(
        Interval(0, 86400), default="0", about="how often to test an open connection by a PING; 0 means 2m"
    )

    @property
    def uses_tls(self) -> bool:
        """Whether the connection must use TLS. If not, it uses TLS only if the server requires it (as nats.go does)."""
        return bool(self.tls or self.tls_handshake_first or self.cert_authority or self.client_cert)

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from check_certificate_pair(self.client_cert, self.client_key)
        if self.username and not self.password:
            yield Problem("password", "", "is missing", "username and password come together")
        if self.password and not self.username:
            yield Problem("username", "", "is missing", "username and password come together")
        logins = [name for name in ("username", "token", "user_credentials", "nkey_seed") if getattr(self, name)]
        if len(logins) > 1:
            yield Problem(logins[1], "", f"is a second way to log in beside {logins[0]}", "keep one of them")

    def ineffective(self) -> Iterator[Problem]:
        yield from super().ineffective()
        if not self.uses_tls:
            yield from needing_tls(self, "tls_skip_verify")


@declared
class NatsSettings(
    NatsConnection,
    MessageSettings,
    type_name="nats",
    title="NATS",
    example={"address": "nats", "subject": "minio.events"},
):
    """NATS (reference §4.5): core, JetStream with `jetstream=on`, NATS Streaming with `streaming=on`."""

    # MinIO has generated the client id itself since 2018-12 (§3.5), and so do we.
    obsolete: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"streamingclientid": "each connection has an id of its own"}
    )

    subject: Place = setting(
        Templated(Subject(), "subject", percent(r"[.*>%$\s\x00-\x1f\x7f]")),
        about="the subject of every message, such as bucketevents or minio.{bucket}.{kind}",
    )
    tls_skip_verify: bool = setting(
        Toggle(), default="off", about="do not verify the server's certificate (MinIO verifies it even so)"
    )
    secure: bool = setting(Toggle(), default="off", about="the name of tls before 2019; on means tls=on")
    jetstream: bool = setting(Toggle(), default="off", about="publish to a JetStream stream, which must exist")
    streaming: bool = setting(
        Toggle(),
        default="off",
        aliases=("streaming_enable",),
        about="publish to NATS Streaming (no longer maintained)",
    )
    streaming_cluster_id: str = setting(ClusterId(), default="", about="id of the NATS Streaming cluster")
    streaming_async: bool = setting(
        Toggle(), default="off", about="NATS Streaming: allow more than one unacknowledged message, up to max_in_flight"
    )
    streaming_max_pub_acks_in_flight: int = setting(
        Number(0, 50_000), default="0", about="NATS Streaming: most unacknowledged messages; 0 means 16384"
    )

    @property
    def uses_tls(self) -> bool:
        """Whether the connection must use TLS, by its older name too."""
        return self.secure or super().uses_tls

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.streaming and not self.streaming_cluster_id:
            yield Problem(
                "streaming_cluster_id", "", "is required with streaming=on", "set it to the server's -cluster_id"
            )
        if self.streaming and self.payload == "cloudevents-binary":
            hint = "set payload=cloudevents"
            yield Problem("payload", self.payload, "needs headers, which NATS Streaming does not have", hint)
        if self.streaming and self.jetstream:
            yield Problem("jetstream", "on", "conflicts with streaming=on", "keep one of them")
