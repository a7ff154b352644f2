"""The jobs of a worker process, which the tasks call, over what the process holds."""

import os

from app.config.settings import Settings
from app.per_process import PerProcess
from workers.deliverer import Deliverer
from workers.delivery.pooled_target import TargetPool
from workers.drain import Drain, Upkeep
from workers.resources import Resources


class Runtime(Resources):
    """One worker process; `current()` creates it again after a fork."""

    def __init__(self, settings: Settings, pool: TargetPool | None = None) -> None:
        super().__init__(settings, pool)
        self.upkeep = Upkeep(self)
        self.drain = Drain(self, self.upkeep)
        self.deliverer = Deliverer(self)


_current = PerProcess(lambda: Runtime(Settings.from_environ(os.environ)))


def forget() -> None:
    """Close what this process has open; the next use creates it again. A forked child only drops the parent's."""
    if (runtime := _current.forget()) is not None:
        runtime.close()


def current() -> Runtime:
    """Return this process's runtime; the first use creates it."""
    return _current.get()
