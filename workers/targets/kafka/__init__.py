"""Kafka."""

from workers.targets.kafka.target import KafkaTarget

__all__ = ["KafkaTarget"]
