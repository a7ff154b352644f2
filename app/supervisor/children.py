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
    """One process of the service. `quiet`: its warnings appear only in its log file.

    `bucketwire` are its arguments if it is a command of ours, which need not be started afresh but can be forked.
    """

    name: str
    stage: int
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False
    bucketwire: Sequence[str] = ()


def broker(settings: Settings) -> Child:
    """Return the embedded Redis. Raises `RedisMissing`."""
    return Child("redis", BROKER, redis_command(settings), quiet=True)


def service(
    *, concurrency: int, flower_port: int, flower_url: str = "", shared: Mapping[str, str] = MappingProxyType({})
) -> list[Child]:
    """Return the processes that always run, in start order. The drain has its own worker, so no delivery delays it.

    `flower_url` is where browsers find Flower, if not at its own port; `shared` is the environment that the API and the
    delivering worker have in common.
    """
    flower = f"127.0.0.1:{flower_port}"
    # It is the only API, and there is no time for a delay before it is killed.
    api_env = {"BUCKETWIRE_FLOWER_URL": flower_url or f"http://{flower}/", "BUCKETWIRE_STOP_DELAY": "0", **shared}
    return [
        _own("api", API, "api", env=api_env),
        _own("drain", WORKERS, "worker", "--only", "drain"),
        _own("targets", WORKERS, "worker", "--only", "targets", "--concurrency", str(concurrency), env=shared),
        _own("beat", BEAT, "beat"),
        _own("flower", FLOWER, "flower", "--listen", flower, quiet=True),
    ]


def reconciler() -> Child:
    """Return the worker that runs scheduled reconciliations."""
    return _own("spark", WORKERS, "worker", "--only", "spark")


def puller() -> Child:
    """Return the worker that pulls from sources."""
    return _own("sources", WORKERS, "worker", "--only", "sources")


def _own(
    name: str, stage: int, *arguments: str, env: Mapping[str, str] = MappingProxyType({}), quiet: bool = False
) -> Child:
    return Child(name, stage, [sys.executable, "-P", "-m", "bucketwire", *arguments], env, quiet, arguments)
