"""The state of the task broker as this process knows it: all that use the broker share it, and it is logged once."""

import logging

from app.broker import BrokerState

state = BrokerState(logging.getLogger("bucketwire.worker"), "no work is begun until it works again")
