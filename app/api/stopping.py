"""Whether this API stops soon: probes say so, so that a load balancer sends it nothing more, and connections end."""

import mmap


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
