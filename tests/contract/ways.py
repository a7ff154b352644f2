"""Which ways of using a target `make nightly` tries alone where another way of its type shows the same on every change.

The markers are for tests of every way: `running` is its name, `window` how many requests may be under way. They leave
alone what a module of one way takes over from the contract, which has no `running`.
"""

from __future__ import annotations

import pytest

# Beside one that connects alike; and those that combine what two others have, or differ in a message's shape alone.
SECOND = {
    "amqp-headers", "elasticsearch-access", "mqtt-5", "mqtt-qos0", "mqtt-qos2", "mysql-access", "nats-streaming-async",
    "postgresql-access", "redis-access", "redis-stream", "sqs-fifo",
}  # fmt: skip
COMBINED = {"mqtt-5-qos2", "redis-access-guide"}
BESIDE = SECOND | COMBINED
# Confirmed as the first way is; the others have a loop of their own that waits for confirmations.
_CONFIRMED_ALIKE = BESIDE - {"mqtt-qos0", "mqtt-qos2", "nats-streaming-async"}
_FIRST_OF_TWO = {
    "amqp-queue", "elasticsearch-namespace", "mqtt-qos1", "mysql-namespace", "nats-streaming", "postgresql-namespace",
    "redis-namespace", "sqs",
}  # fmt: skip
# Types that make something at the server, which they find when they are opened again.
_MAKE_SOMETHING = {
    "amqp-headers", "elasticsearch-namespace", "mysql-namespace", "nats-jetstream", "postgresql-namespace",
}  # fmt: skip

connecting = pytest.mark.nightly(
    "one way of each type: its ways share the code that connects, logs in, speaks TLS and closes",
    when=lambda running: running in BESIDE,
)
confirming = pytest.mark.nightly(
    "one way of each type, and each that waits for confirmations otherwise: what is awaited and given up is the same",
    when=lambda running: running in _CONFIRMED_ALIKE,
)
sending = pytest.mark.nightly(
    "up to 100 at a time by second ways, and both by one way of each type: its ways share the loop that sends",
    when=lambda running, window: running in COMBINED or (window == 1 and running in BESIDE),
)
ending = pytest.mark.nightly(
    "one at a time by the first way of a type, and up to 100 by the second: its ways share the loop that sends",
    when=lambda running, window: running in _FIRST_OF_TWO and window > 1,
)
storing = pytest.mark.nightly(
    "up to 100 at a time: what is in a message does not depend on how many are under way",
    when=lambda running, window: window == 1,
)
combining = pytest.mark.nightly(
    "what they store: they are two ways at once, each of which is there, or differ in the shape of messages alone",
    when=lambda running: running in COMBINED,
)
opening_again = pytest.mark.nightly(
    "the types that make something at the server: each other opens as it did the first time",
    when=lambda running: running not in _MAKE_SOMETHING,
)
