"""Objects that are not shared with a forked process, such as one that has a thread, a lock or a connection."""

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """An object of which each process has its own: `make` makes it at the first use, and again after a fork.

    Safe to use from any thread.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._making = threading.Lock()
        self._made: tuple[int, T] | None = None  # with the id of the process

    def get(self) -> T:
        """Return this process's object."""
        made = self._made
        if made is None or made[0] != os.getpid():
            with self._making:
                made = self._made
                if made is None or made[0] != os.getpid():
                    made = self._made = os.getpid(), self._make()
        return made[1]

    def forget(self) -> T | None:
        """Return this process's object if there is one; the next use makes another."""
        made, self._made = self._made, None
        return made[1] if made is not None and made[0] == os.getpid() else None
