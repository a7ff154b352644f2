"""AMQP sources: a queue or a stream of RabbitMQ."""

from workers.sources.amqp.source import AmqpSource

__all__ = ["AmqpSource"]
