"""The jobs of a worker process, which the tasks call, over what the process holds."""

import os

from app.config.settings import Settings
from workers.deliverer import Deliverer
from workers.drain import Drain
from workers.resources import Resources
from workers.target_pool import TargetPool
from workers.upkeep import Upkeep


class Runtime(Resources):
    """One worker process; `current()` creates it again after a fork."""

    def __init__(self, settings: Settings, pool: TargetPool | None = None) -> None:
        super().__init__(settings, pool)
        self.upkeep = Upkeep(self)
        self.drain = Drain(self, self.upkeep)
        self.deliverer = Deliverer(self)


_current: tuple[int, Runtime] | None = None


def forget() -> None:
    """Close what this process has open; the next use creates it again. A forked child only drops the parent's."""
    global _current  # noqa: PLW0603 - see current()
    if _current is not None and _current[0] == os.getpid():
        _current[1].close()
    _current = None


def current() -> Runtime:
    """Return this process's runtime; the first use creates it."""
    global _current  # noqa: PLW0603 - one for each process is the point
    if _current is None or _current[0] != os.getpid():
        _current = (os.getpid(), Runtime(Settings.from_environ(os.environ)))
    return _current[1]
