"""AMQP: RabbitMQ and other brokers of AMQP 0-9-1."""
