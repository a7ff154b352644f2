"""NATS: core, JetStream, Streaming."""

from workers.targets.nats.target import NatsTarget

__all__ = ["NatsTarget"]
