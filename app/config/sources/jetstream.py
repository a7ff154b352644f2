"""The settings of a JetStream source."""

import re
from typing import Literal

from app.config.errors import BadValue
from app.config.fields.field_types import Choice, FieldType
from app.config.fields.fields import declared, setting
from app.config.sources.base import QueueSettings
from app.config.targets.nats import NatsConnection, check_subject

_MAX_STREAM_CHARACTERS = 255


class StreamName(FieldType[str]):
    """The name of a stream, by the server's own rule; it is a word of the subjects on which the server is asked."""

    label = "name of a stream"
    empty = ""

    def parse(self, text: str) -> str:
        """Return the name."""
        if len(text) > _MAX_STREAM_CHARACTERS or not re.fullmatch(r"[^\s\x00-\x1f\x7f.*>/\\]+", text):
            raise BadValue(
                "is not the name of a stream",
                f"write up to {_MAX_STREAM_CHARACTERS} characters, without spaces and . * > / \\",
            )
        return text


class SubjectFilter(FieldType[str]):
    """A subject, which may have NATS's wildcards."""

    label = "subject, or a pattern"
    empty = ""

    def parse(self, text: str) -> str:
        """Return the subject."""
        check_subject(text)
        words = text.split(".")
        if ">" in words[:-1] or any(set(word) & {"*", ">"} and len(word) > 1 for word in words):
            raise BadValue("has a wildcard within a word", "write * for a word, and > for all that follow")
        return text


@declared
class JetstreamSourceSettings(
    NatsConnection,
    QueueSettings,
    type_name="jetstream",
    system="nats",
    title="NATS JetStream",
    example={"address": "nats:4222", "stream": "BUCKETEVENTS"},
):
    """A stream of NATS JetStream, which exists already. The outbox has the position in it."""

    names_queue = ("stream", "subject")

    stream: str = setting(StreamName(), about="the stream, which has to exist, with the retention limits")
    subject: str = setting(
        SubjectFilter(), default="", about="pull only messages of this subject, such as minio.>; empty: all"
    )
    start: Literal["earliest", "latest"] = setting(
        Choice("earliest", "latest"),
        default="earliest",
        about="where a new source begins: with the oldest message, or with those that are sent from then on",
    )
