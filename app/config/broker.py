"""What others need to know of the task broker without loading what connects to it."""

# Every key of the broker in Redis begins with it: queues, and what is not acknowledged. A target's key must not.
KEY_PREFIX = "bucketwire-broker:"


def is_rabbitmq(broker_url: str) -> bool:
    """Return whether the broker speaks AMQP."""
    return broker_url.startswith("amqp")
