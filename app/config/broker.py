"""What the task broker keeps for itself in a database that targets may use, too."""

# Every key of the broker in Redis begins with it: queues, and what is not acknowledged. A target's key must not.
KEY_PREFIX = "bucketwire-broker:"
