"""The processes of the whole service, and the stage in which each is stopped."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from app.config.settings import Settings
from app.supervisor.embedded_broker import redis_command

API, BEAT, WORKERS, FLOWER, BROKER = range(5)  # stop first what accepts new work, last what the others need


@dataclass(frozen=True, slots=True)
class Child:
    """One process of the service. `quiet`: its warnings appear only in its log file."""

    name: str
    stage: int
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False


def broker(settings: Settings) -> Child:
    """Return the embedded Redis. Raises `RedisMissing`."""
    return Child("redis", BROKER, redis_command(settings), quiet=True)


def service(*, concurrency: int, flower_port: int, shared: Mapping[str, str] = MappingProxyType({})) -> list[Child]:
    """Return the processes that always run, in start order. The drain has its own worker, so no delivery delays it.

    `shared` is the environment that the API and the delivering worker have in common.
    """
    targets = _bucketwire("worker", "--only", "targets", "--concurrency", str(concurrency))
    return [
        Child("api", API, _bucketwire("api"), shared),
        Child("drain", WORKERS, _bucketwire("worker", "--only", "drain")),
        Child("targets", WORKERS, targets, shared),
        Child("beat", BEAT, _bucketwire("beat")),
        Child("flower", FLOWER, _bucketwire("flower", "--listen", f"127.0.0.1:{flower_port}"), quiet=True),
    ]


def reconciler() -> Child:
    """Return the worker that runs scheduled reconciliations."""
    return Child("spark", WORKERS, _bucketwire("worker", "--only", "spark"))


def _bucketwire(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "app.cli", *arguments]
