"""Paths that probes ask, which are answered whatever else is asked; and whether this API stops soon, as they say."""

import mmap
from collections.abc import Mapping
from types import MappingProxyType

ALIVE, READY = "/healthz", "/readyz"
# With MinIO's, for `mc ready` and for load balancers that probe a MinIO; and which of ours answers each.
PROBES: Mapping[str, str] = MappingProxyType(
    {
        ALIVE: ALIVE,
        READY: READY,
        "/minio/health/live": ALIVE,
        "/minio/health/ready": READY,
        "/minio/health/cluster": READY,
        "/minio/health/cluster/read": READY,
    }
)


class Stopping:
    """A flag that the API's processes share: the parent allocates it before it forks them, and sets it once."""

    def __init__(self) -> None:
        self._flag: mmap.mmap | None = None

    def share(self) -> None:
        """Allocate the flag, unset; call this before the processes are forked."""
        self._flag = mmap.mmap(-1, 1)

    def begin(self) -> None:
        """Set the flag, for all processes."""
        if self._flag is not None:
            self._flag[0] = 1

    @property
    def begun(self) -> bool:
        """Whether it is set."""
        return self._flag is not None and self._flag[0] == 1


stopping = Stopping()  # of the API that this process belongs to
