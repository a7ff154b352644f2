"""A standard queue of SQS on ElasticMQ."""

from __future__ import annotations

from tests.contract.probes.sqs import Standard
from tests.contract.source_probes.sqs_fifo import Groups


class Unordered(Groups):
    """A queue in which a message that comes again comes after others."""

    way = Standard
    keeps_order = False

    def group(self, body: str) -> dict[str, str]:
        return {}


PROBE = Unordered
