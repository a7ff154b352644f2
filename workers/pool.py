"""The targets that this process has open: made in the process that uses them, reopened when their settings change."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.config.settings import Settings
from app.config.targets import TargetSettings, WebhookSettings
from app.outbox.registry import Registry, StoredTarget
from workers.discretion import Discreet
from workers.lanes import Pace, Work
from workers.mirror import Policy
from workers.retry import RetrySchedule
from workers.targets import create


@dataclass(frozen=True, slots=True)
class _Open:
    values: Mapping[str, str]
    work: Work


class Pool:
    """One `Work` for each target. Not inherited by a forked child: a driver's connection must not be shared."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._settings = settings
        self._open: dict[int, _Open] = {}

    def work(self, stored: StoredTarget) -> Work:
        """The target as this process has it open. Raises `BadSettings`."""
        known = self._open.get(stored.row_id)
        if known is not None and known.values == stored.values:
            return known.work
        if known is not None:
            known.work.target.close()
        settings = as_served(self._registry.settings(stored), self._settings)
        work = Work(
            name=stored.target.arn(self._settings.region),
            target=Discreet(create(stored.target.type, settings), settings),
            policy=policy(settings),
            schedule=schedule(settings),
            window=window(settings, sync_events=self._settings.sync_events),
            pace=Pace(limit=settings.batch_size, size=min(16, settings.batch_size)),
        )
        self._open[stored.row_id] = _Open(dict(stored.values), work)
        return work

    def close(self) -> None:
        """Close every target."""
        for known in self._open.values():
            with contextlib.suppress(Exception):  # the process ends; the remote sees a closed connection either way
                known.work.target.close()
        self._open.clear()


def as_served(settings: TargetSettings, service: Settings) -> TargetSettings:
    """A target's settings with what the service's own add to them."""
    if isinstance(settings, WebhookSettings) and service.allow_private:
        return replace(settings, allow_private=True)
    return settings


def policy(settings: TargetSettings) -> Policy:
    """How a target with these settings uses events."""
    if getattr(settings, "format", "access") != "namespace":
        return Policy.LOG
    return Policy(getattr(settings, "policy"))  # noqa: B009 - only the types with a namespace format have it


def schedule(settings: TargetSettings) -> RetrySchedule:
    """The retry schedule that these settings ask for."""
    return RetrySchedule(
        base=int(settings.retry_base * 1000),
        cap=int(settings.retry_max_delay * 1000),
        max_attempts=settings.max_attempts,
        max_age=int(settings.max_age * 1000),
    )


def window(settings: TargetSettings, *, sync_events: bool) -> int:
    """How many requests may be unconfirmed: 1 in sync mode. A target's own `sync` goes before the service's."""
    sync = sync_events if settings.sync == "" else settings.sync == "on"
    return 1 if sync else settings.max_in_flight
