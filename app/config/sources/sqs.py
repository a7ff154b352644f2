"""The settings of an SQS source."""

from app.config.fields.field_types import Duration
from app.config.fields.fields import declared, setting
from app.config.sources.base import QueueSettings
from app.config.targets.sqs import SqsConnection


@declared
class SqsSourceSettings(
    SqsConnection,
    QueueSettings,
    type_name="sqs",
    title="SQS",
    example={
        "queue_url": "https://sqs.us-east-1.amazonaws.com/123456789012/bucketevents",
        "instance_role": "on",
    },
):
    """A queue of Amazon SQS, or of a server that speaks its JSON protocol. It remembers what was taken."""

    visibility: float = setting(
        Duration(10, 43_200),
        default="1m",
        about="how long a message is hidden from others once it is pulled; while it waits here, that is extended",
    )
