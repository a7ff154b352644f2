"""Know whether the task broker can be reached, and log each change once."""

import logging

from app.broker import BrokerState

log = logging.getLogger("bucketwire.worker")

# All that use the broker share it.
broker_state = BrokerState(log, "no work is begun until it works again")
