"""What the contract suite has to know of each target: how to reach a real one, how to upset it, and what it holds.

A new target joins by one file here and one entry in `PROBES` for each way of using it.
"""

from __future__ import annotations

from importlib import import_module

from tests import services
from tests.contract.probes.base import Probe

PROBES = {
    "amqp-queue": "tests.contract.probes.amqp:Queue",
    "amqp-headers": "tests.contract.probes.amqp:Headers",
    "elasticsearch-namespace": "tests.contract.probes.elasticsearch:Namespace",
    "elasticsearch-access": "tests.contract.probes.elasticsearch:Access",
    "kafka": "tests.contract.probes.kafka:Log",
    "mysql-namespace": "tests.contract.probes.mysql:Namespace",
    "mysql-access": "tests.contract.probes.mysql:Access",
    "nats-core": "tests.contract.probes.nats:Core",
    "nats-jetstream": "tests.contract.probes.nats_jetstream:JetStream",
    "nats-streaming": "tests.contract.probes.nats_streaming:Streaming",
    "nats-streaming-async": "tests.contract.probes.nats_streaming:AsyncStreaming",
    "nsq": "tests.contract.probes.nsq:Log",
    "mqtt-qos0": "tests.contract.probes.mqtt:Qos0",
    "mqtt-qos1": "tests.contract.probes.mqtt:Qos1",
    "mqtt-qos2": "tests.contract.probes.mqtt:Qos2",
    "mqtt-5": "tests.contract.probes.mqtt:Version5",
    "mqtt-5-qos2": "tests.contract.probes.mqtt:Version5Qos2",
    "redis-namespace": "tests.contract.probes.redis:Namespace",
    "redis-access": "tests.contract.probes.redis:Access",
    "redis-access-guide": "tests.contract.probes.redis:GuideAccess",
    "postgresql-namespace": "tests.contract.probes.postgresql:Namespace",
    "postgresql-access": "tests.contract.probes.postgresql:Access",
    "webhook": "tests.contract.probes.webhook:Log",
}


def start(name: str, *server: services.Server) -> Probe:
    """The probe of this name with its server running: one of its own, unless one is given."""
    module, _, kind = PROBES[name].partition(":")
    probe: Probe = getattr(import_module(module), kind)(*server)
    return probe
