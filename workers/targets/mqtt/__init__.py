"""MQTT."""

from workers.targets.mqtt.target import MqttTarget

__all__ = ["MqttTarget"]
