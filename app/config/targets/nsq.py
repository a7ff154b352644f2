"""The settings of NSQ (reference §4.6)."""

import re
from typing import Literal

from app.config.errors import BadValue
from app.config.fields.addresses import Host, HostPort
from app.config.fields.field_types import FieldType, Toggle
from app.config.fields.fields import declared, setting
from app.config.targets.base import MessageSettings, Payload, TlsSettings


class Topic(FieldType[str]):
    """An NSQ topic, by nsqd's own rule."""

    label = "topic"
    empty = ""

    def parse(self, text: str) -> str:
        if not re.fullmatch(r"[.a-zA-Z0-9_-]{1,64}(#ephemeral)?", text) or len(text) > 64:
            raise BadValue(
                "is not a topic name", "use up to 64 letters, digits, dots, _ and -; it may end with #ephemeral"
            )
        return text


@declared
class NsqSettings(
    MessageSettings,
    TlsSettings,
    type_name="nsq",
    title="NSQ",
    example={"nsqd_address": "nsqd", "topic": "bucketevents"},
):
    """NSQ (reference §4.6)."""

    nsqd_address: HostPort = setting(Host(4150), about="host:port of nsqd's TCP listener, not of nsqlookupd")
    topic: str = setting(Topic(), about="the topic of every message")
    payload: Literal["minio", "cloudevents"] = setting(
        Payload("minio", "cloudevents"), default="minio", about="messages as MinIO writes them, or CloudEvents in JSON"
    )
    tls: bool = setting(Toggle(), default="off", aliases=("tls_enable",), about="use TLS, which nsqd must offer")

    @property
    def uses_tls(self) -> bool:
        """Whether to ask nsqd for TLS."""
        return self.tls
