"""AMQP: RabbitMQ and other brokers of AMQP 0-9-1."""

from workers.targets.amqp.target import AmqpTarget

__all__ = ["AmqpTarget"]
