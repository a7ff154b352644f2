"""The settings of a Kafka source."""

from typing import Literal

from app.config.errors import BadValue
from app.config.fields.field_types import Choice, FieldType
from app.config.fields.fields import declared, setting
from app.config.sources.base import QueueSettings
from app.config.targets.kafka import KafkaConnection

_MAX_GROUP_CHARACTERS = 249


class Group(FieldType[str]):
    """The name of a consumer group."""

    label = "name of a group"
    empty = ""

    def parse(self, text: str) -> str:
        """Return the name."""
        if len(text) > _MAX_GROUP_CHARACTERS or not (text.isascii() and text.isprintable()):
            raise BadValue(
                "is not the name of a group", f"write up to {_MAX_GROUP_CHARACTERS} printable ASCII characters"
            )
        return text


@declared
class KafkaSourceSettings(
    KafkaConnection,
    QueueSettings,
    type_name="kafka",
    title="Kafka",
    example={"brokers": "kafka", "topic": "bucketevents"},
):
    """A topic of Kafka. The outbox has the position in each partition; the group only shows it to Kafka's tools."""

    names_queue = ("topic",)

    group: str = setting(
        Group(),
        default="bucketwire",
        about="the group by which Kafka's tools show the position; nobody else may be in it",
    )
    start: Literal["earliest", "latest"] = setting(
        Choice("earliest", "latest"),
        default="earliest",
        about="where a new source begins: with the oldest message, or with those that are sent from then on",
    )
