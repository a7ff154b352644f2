"""AMQP 0-9-1: RabbitMQ and other brokers."""
