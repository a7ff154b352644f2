"""The settings of an AMQP source."""

from dataclasses import replace

from app.config.fields.fields import declared, setting
from app.config.sources.base import QueueSettings
from app.config.targets.amqp import AmqpAddress, AmqpConnection, ShortString

_HEARTBEAT_SECONDS = 10  # at most: a server gives the queue back within three of them after a worker has vanished


@declared
class AmqpSourceSettings(
    AmqpConnection,
    QueueSettings,
    type_name="amqp",
    title="AMQP",
    example={"url": "amqp://rabbitmq", "queue": "bucketevents"},
):
    """A queue of AMQP 0-9-1, which exists already. Its server remembers what was taken."""

    queue: str = setting(ShortString(), about="the queue, which has to exist, and has no other consumer")

    @property
    def place(self) -> AmqpAddress:
        """The address and login to connect with, and a heartbeat that soon shows when either side has vanished."""
        place = super().place
        return replace(place, heartbeat=min(place.heartbeat or _HEARTBEAT_SECONDS, _HEARTBEAT_SECONDS))
