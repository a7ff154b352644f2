"""Connect to one of several nodes of a cluster: to the same one as long as it is there, else to the next."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

N = TypeVar("N")
C = TypeVar("C")


class NodeRotation(Generic[N]):
    """The nodes, of which the first is connected to; one that cannot be reached becomes the last."""

    def __init__(self, nodes: Iterable[N], timeout: float) -> None:
        """`timeout` is in seconds: after it no further node is tried, so that nodes that hang do not add up."""
        self._nodes = deque(nodes)
        self._timeout = timeout

    def connect(self, connect: Callable[[N], C], errors: type[Exception] | tuple[type[Exception], ...]) -> C:
        """Return the connection to the first node to which `connect` makes one. Raises its last one of `errors`."""
        ends = time.monotonic() + self._timeout
        tried = 0
        while True:
            tried += 1
            try:
                return connect(self._nodes[0])
            except errors:
                self._nodes.rotate(-1)
                if tried == len(self._nodes) or time.monotonic() >= ends:
                    raise
