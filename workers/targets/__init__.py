"""Map a target's type to its adapter, and import the driver only when a target of that type is created.

A new target is one file or package here and one entry in `_ADAPTERS`.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from workers.targets.base import Adapter

_ADAPTERS = {
    "amqp": "workers.targets.amqp.target:AmqpTarget",
    "elasticsearch": "workers.targets.elasticsearch.target:ElasticsearchTarget",
    "kafka": "workers.targets.kafka.target:KafkaTarget",
    "mysql": "workers.targets.mysql.target:MysqlTarget",
    "nats": "workers.targets.nats.target:NatsTarget",
    "nsq": "workers.targets.nsq.target:NsqTarget",
    "mqtt": "workers.targets.mqtt.target:MqttTarget",
    "postgresql": "workers.targets.postgresql.target:PostgresTarget",
    "redis": "workers.targets.redis.target:RedisTarget",
    "webhook": "workers.targets.webhook.target:WebhookTarget",
}


def _lazily(place: str) -> Callable[[Any], Adapter]:
    module, _, name = place.partition(":")

    def make(settings: Any) -> Adapter:
        made: Adapter = getattr(import_module(module), name)(settings)
        return made

    return make


TARGETS: Mapping[str, Callable[[Any], Adapter]] = MappingProxyType(
    {type_: _lazily(place) for type_, place in _ADAPTERS.items()}
)


def create(type: str, settings: Any) -> Adapter:  # noqa: A002 (a target's type, as in its ARN)
    """Create a target of this type, not yet opened; `settings` is the type's dataclass of `app.config.targets`.

    Raises `LookupError` with the known types.
    """
    if type not in TARGETS:
        raise LookupError(f"no target type {type!r}; there are {', '.join(sorted(TARGETS))}")
    return TARGETS[type](settings)
