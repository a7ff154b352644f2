"""Keep the open targets of this process: each is opened in the process that uses it, and again on new settings."""

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import chain

from app import telemetry
from app.config.api_settings import sync_events
from app.config.arn import TargetId
from app.config.errors import BadSettings
from app.config.fields.fields import references
from app.config.settings import Settings
from app.config.targets.base import TargetSettings
from app.outbox.registry import Registry
from app.outbox.targets import StoredTarget
from workers.delivery.batch_record import Observer
from workers.delivery.namespace_policy import Policy
from workers.delivery.pooled_target import BatchSizer, PooledTarget
from workers.delivery.retry import RetrySchedule
from workers.targets import create
from workers.targets.certificates import seen_with
from workers.telemetry import metrics
from workers.telemetry.call_spans import CallSpans
from workers.telemetry.redaction import RedactingTarget

log = logging.getLogger("bucketwire.worker")

_STORED_SECONDS = 0.5  # for which the stored settings of the section `api` are cached
_REMOVED_SECONDS = 60.0  # between two searches for open targets that were removed


@dataclass(frozen=True, slots=True)
class _Entry:
    values: Mapping[str, str]
    settings: TargetSettings
    sync: bool  # the service's, for targets that do not set it
    target: PooledTarget
    in_files: bool  # whether a secret may change while its setting does not; variables of a process do not change


class TargetPool:
    """One `PooledTarget` for each target. A forked child has its own: it must not share a driver's connection."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._settings = settings
        self._entries: dict[int, _Entry] = {}
        self._stored: Mapping[str, str] = {}  # the settings of the section `api`
        self._read_again = 0.0  # when to read them
        self._searched = time.monotonic()  # when it looked for removed targets
        self._unread: set[int] = set()  # targets with a secret in a file that could not be read again

    def target(self, stored: StoredTarget) -> PooledTarget:
        """Return the target, with the current content of the secret files in its settings. Raises `BadSettings`.

        Targets that were removed are closed, one of the same name before this one is opened.
        """
        if time.monotonic() - self._searched > _REMOVED_SECONDS:
            self._searched = time.monotonic()
            self._close_all(self._entries.keys() - {stored.row_id} - self._registry.existing(self._entries.keys()))
        known = self._entries.get(stored.row_id)
        sync = self._sync_events()
        same = known is not None and known.values == stored.values and known.sync == sync
        if known is not None and same and not known.in_files:
            return known.target
        try:
            settings = self._registry.settings(stored).served(allow_private=self._settings.allow_private)
        except BadSettings as error:
            if known is None or not same:
                raise
            # A file that is being replaced must not stop a target that works with the file's previous content.
            if stored.row_id not in self._unread:
                log.warning("%s keeps its secrets, because they cannot be read again: %s", known.target.name, error)
            self._unread.add(stored.row_id)
            return known.target
        self._unread.discard(stored.row_id)
        if known is not None:
            if same and known.settings == settings:
                return known.target
            known.target.adapter.close()
        arn = stored.target.arn(self._settings.region)
        self._close_all({row_id for row_id, one in self._entries.items() if one.target.name == arn} - {stored.row_id})
        target = PooledTarget(
            name=arn,
            adapter=RedactingTarget(create(stored.target.type, settings), settings),
            policy=policy(settings),
            schedule=schedule(settings),
            window=window(settings, sync_events=sync),
            sizer=BatchSizer(limit=settings.batch_size),
            rate=settings.rate_limit,
            certificates=seen_with(settings),
            observers=tuple(observers(stored.target, arn)),
        )
        secrets = chain.from_iterable(references(type(settings), self._registry.texts(stored)).values())
        in_files = any(secret.startswith("file:") for secret in secrets)
        self._entries[stored.row_id] = _Entry(dict(stored.values), settings, sync, target, in_files)
        return target

    def is_quick(self, stored: StoredTarget) -> bool:
        """Return whether this process has the target open, and its last batch took little time."""
        known = self._entries.get(stored.row_id)
        return known is not None and known.target.is_quick

    def _sync_events(self) -> bool:
        """Return whether targets are in sync mode that do not set it; a stored value is known within half a second."""
        now = time.monotonic()
        if not self._settings.sync_events and now >= self._read_again:
            self._stored = self._registry.api_settings()
            self._read_again = now + _STORED_SECONDS
        return sync_events(self._settings.sync_events, self._stored).value == "on"

    def close(self) -> None:
        """Close every target."""
        self._close_all(set(self._entries))

    def _close_all(self, row_ids: Set[int]) -> None:
        for row_id in row_ids:
            known = self._entries.pop(row_id)
            self._unread.discard(row_id)
            with contextlib.suppress(Exception):  # nobody uses it; either way the remote detects a closed connection
                known.target.adapter.close()


def observers(target: TargetId, arn: str) -> Iterator[Observer]:
    """Yield what sees this process's calls to a target: its metrics and spans, if there are any."""
    if (of_target := metrics.of(arn)) is not None:
        yield of_target
    if (tracing := telemetry.tracing()) is not None:
        yield CallSpans(tracing, target, arn)


def policy(settings: TargetSettings) -> Policy:
    """Return how a target with these settings uses events."""
    if getattr(settings, "format", "access") != "namespace":
        return Policy.LOG
    return Policy(getattr(settings, "policy"))  # noqa: B009 - only the types with a namespace format have it


def schedule(settings: TargetSettings) -> RetrySchedule:
    """Return the retry schedule that these settings define."""
    return RetrySchedule(
        base=int(settings.retry_base * 1000),
        cap=int(settings.retry_max_delay * 1000),
        max_attempts=settings.max_attempts,
        max_age=int(settings.max_age * 1000),
    )


def window(settings: TargetSettings, *, sync_events: bool) -> int:
    """Return how many requests may be unconfirmed: 1 in sync mode. A target's own `sync` overrides the service's."""
    sync = sync_events if settings.sync == "" else settings.sync == "on"
    return 1 if sync else settings.max_in_flight
