"""The settings of a Redis source."""

from collections.abc import Iterator
from typing import Literal

from app.config.errors import Problem
from app.config.fields.field_types import Choice, Text
from app.config.fields.fields import declared, setting
from app.config.sources.base import QueueSettings
from app.config.targets.redis import RedisConnection, RedisKey


@declared
class RedisSourceSettings(
    RedisConnection,
    QueueSettings,
    type_name="redis",
    title="Redis",
    example={"address": "redis", "key": "bucketevents"},
):
    """A list to which a frontend appends, or a stream. Of a stream the outbox has the position."""

    names_queue = ("key", "format", "db")

    key: str = setting(RedisKey(), about="the list or stream; nobody else may take or remove what is in it")
    format: Literal["access", "stream"] = setting(
        Choice("access", "stream"),
        default="access",
        about="a list, as MinIO's Redis target appends to with format=access, or a stream",
    )
    field: str = setting(Text(), default="body", about="format stream: the field of an entry that has the message")
    group: str = setting(
        Text(),
        default="bucketwire",
        about="format stream: the consumer group by which Redis's tools show the position; empty: none",
    )
    start: Literal["earliest", "latest"] = setting(
        Choice("earliest", "latest"),
        default="earliest",
        about="format stream: where a new source begins, with the oldest entry, or with those that come from then on",
    )

    def ineffective(self) -> Iterator[Problem]:
        """Yield what only a stream has."""
        yield from super().ineffective()
        if self.format != "stream" and self.start != "earliest":
            yield Problem("start", self.start, "has no effect without a stream", "set format=stream")
