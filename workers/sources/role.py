"""The role `sources` of a worker: `bucketwire worker --only sources` asks for it by a variable."""

import os

from app.config.settings import Settings
from workers.heartbeat import readiness

VARIABLE = "BUCKETWIRE_WORKER_SOURCES"

_runner = None


def has_role() -> bool:
    """Return whether this worker has the role."""
    return bool(os.environ.get(VARIABLE))


def start(settings: Settings) -> None:
    """Begin to pull, if this worker has the role, whether the task broker is available or not."""
    global _runner  # noqa: PLW0603 - one for each worker is the point
    if _runner is None and has_role():
        from workers.sources.runner import SourceRunner  # noqa: PLC0415 - no other worker needs it

        _runner = SourceRunner(settings, lambda serves: readiness.report(serves=serves))
        _runner.start()


def request_stop() -> None:
    """Have every source released soon."""
    if _runner is not None:
        _runner.request_stop()


def join() -> None:
    """Wait until the sources are released."""
    if _runner is not None:
        _runner.request_stop()
        _runner.join()
