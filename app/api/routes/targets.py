"""List, change, pause and test targets, and show their partitions and the time series of their counters.

A test sends a target an event by way of the log, or tries settings that are not stored: in a process of its own,
because `app` knows no target's driver.
"""

import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from typing import Any
from urllib.parse import urlencode

import orjson
from flask import Blueprint, request
from msgspec import UNSET, UnsetType

from app.api.auth import ADMIN, READ, is_limited, may_see, needs, require_target
from app.api.description import answers, target_of
from app.api.errors import ApiProblem, check_active
from app.api.request_body import json_object
from app.api.services import services
from app.config.api_settings import SyncEvents, is_sync, sync_events
from app.config.arn import TargetId
from app.config.declared_types import settings_type
from app.config.errors import BadSettings, BadValue
from app.config.fields.fields import fields_of, references
from app.config.networks import link_local_addresses
from app.config.target_settings import changed_lines, load, texts, with_kept_secrets
from app.config.targets.base import (
    MAX_LIMITED_BATCH,
    MAX_LIMITED_IN_FLIGHT,
    MAX_LIMITED_SECONDS,
    MessageSettings,
    NamespaceSettings,
    TargetSettings,
)
from app.events.own_events import TEST_BUCKET, make_test_events
from app.outbox import audit, series
from app.outbox.admin.counters import TargetCounters, read_partitions, read_status
from app.outbox.declared import StoredTarget, UnknownTarget
from app.outbox.delivery.availability import with_failing
from app.outbox.engine.database import now_ms
from app.outbox.log.append import QueueFull
from app.outbox.log.group_commit import Recorder
from app.outbox.registry import ReadOnlyTarget, read_api_settings
from app.outbox.series import RESOLUTIONS, percentile, read_merged, read_series
from app.resources.declaration import BadMember, Nothing, format_time
from app.resources.target import (
    Acknowledgement,
    AllSeries,
    BriefQuery,
    Counters,
    Opening,
    Partition,
    Partitions,
    Pause,
    Removed,
    RemoveQuery,
    Sample,
    Seconds,
    Series,
    SeriesQuery,
    SettingsTest,
    Target,
    Targets,
    TargetTest,
    TestStep,
)

routes = Blueprint("targets", __name__)
_OF_ALL = {"allow_private": True, "queue_full": "reject"}  # values that concern more than their target
_SETTINGS = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Settings"}}},
}
# Settings that say nothing of where a target is and how to log in there.
_OF_EVERY_TYPE = {*fields_of(MessageSettings), *fields_of(NamespaceSettings)}
# Runs over every bucket in the target's events.
_SCHEDULES = ("reconcile", "reconcile_incremental", "reconcile_repair", "scan")
MAX_TEST_SECONDS = 25.0  # of a test, less than clients wait for an answer
_TEST_PROGRAM = "workers.target_test"  # only a name here, as in `app.cli.commands.processes`
_running_tests = threading.BoundedSemaphore(2)  # tests in this process, each of which takes some 60 MB and a second
_HOUR = 3_600_000  # ms
_MAX_SAMPLES = 50_000  # in a response


@routes.get("/v1/targets")
@needs(READ, limited=True)
@answers(Targets, "the targets", query=BriefQuery)
def ls(query: BriefQuery) -> Targets:
    """List every target with its settings, state and counters."""
    return Targets(targets=_brief() if query.brief else _described())


@routes.get("/v1/targets/<type_name>/<name>")
@needs(READ, limited=True)
@answers(Target, "the target")
def show(type_name: str, name: str) -> Target:
    """Return a target with its settings, state and counters."""
    return _one(target_of(type_name, name))


@routes.put("/v1/targets/<type_name>/<name>")
@needs(ADMIN, limited=True)
@answers(Target, "the changed target", content=_SETTINGS, other_answers={201: ("the new target", Target)})
def put(type_name: str, name: str) -> tuple[Target, int]:
    """Create a target, or replace its settings.

    The body has the settings by name, as strings or JSON values. An omitted setting gets its default; a secret that is
    sent as `*redacted*` is kept. A changed target takes effect within a second, its retried events are tried at once,
    and a worker opens it within seconds: `opening` is then `opened`, or `failed` with the reason.
    """
    target = target_of(type_name, name)
    settings, stored = _wanted_settings(target)
    services().registry.put(target, settings)
    return _one(target), 201 if stored is None else 200


@routes.post("/v1/targets/<type_name>/<name>/test-settings")
@needs(ADMIN, limited=True)
@answers(SettingsTest, "what came of the test", content=_SETTINGS)
def test_settings(type_name: str, name: str) -> SettingsTest:
    """Send a test event with settings that are not stored, from the API's host, and return each step.

    The target need not exist. The body is that of `PUT`: a secret that is sent as `*redacted*` is the stored one. A
    namespace keeps nothing of the event; other targets keep one entry, of bucket bucketwire-test. At most two tests run
    in a process of the API, for 25 s each.
    """
    target = target_of(type_name, name)
    _check_changeable(target)  # else a secret of the environment could be sent anywhere, which `PUT` refuses, too
    settings, stored = _wanted_settings(target)
    wanted = texts(target.type, settings)
    # Stored secrets may go to another endpoint than the stored one: it is on record to which.
    tried = changed_lines(target.type, stored or {}, wanted)
    facts = {"events": "sent directly", "not_stored": tried}
    audit.record_alone(services().database, "target.test", f"target:{target}", facts)
    allow_private = services().settings.allow_private
    steps = run_settings_test(target, wanted, allow_private=allow_private, limited=is_limited())
    return SettingsTest(
        target=target.arn(services().settings.region),
        ok=all(step["ok"] for step in steps),
        steps=[TestStep(**step) for step in steps],
    )


@routes.delete("/v1/targets/<type_name>/<name>")
@needs(ADMIN, limited=True)
@answers(Removed, "the target is removed", query=RemoveQuery)
def remove(type_name: str, name: str, query: RemoveQuery) -> Removed:
    """Remove a target.

    Refused with 409 while rules name the target, or it has undelivered events or dead letters, unless `force` is set;
    then `lost` lists what was deleted with it.
    """
    return Removed(lost=services().registry.remove(target_of(type_name, name), force=query.force))


@routes.post("/v1/targets/<type_name>/<name>/pause")
@needs(ADMIN, limited=True)
@answers(Target, "the target", body=Pause)
def pause(type_name: str, name: str, body: Pause) -> Target:
    """Stop deliveries to a target until it is resumed; its events wait."""
    target = target_of(type_name, name)
    services().registry.pause(target, body.reason or "paused through the API")
    return _one(target)


@routes.post("/v1/targets/<type_name>/<name>/resume")
@needs(ADMIN, limited=True)
@answers(Target, "the target", body=Nothing)
def resume(type_name: str, name: str, body: Nothing) -> Target:  # noqa: ARG001 - nothing else is accepted
    """End a target's pause, close its circuit breaker, and try its retried events at once."""
    target = target_of(type_name, name)
    services().registry.resume(target)
    return _one(target)


@routes.post("/v1/targets/<type_name>/<name>/acknowledge")
@needs(ADMIN, limited=True)
@answers(Target, "the target", body=Acknowledgement)
def acknowledge(type_name: str, name: str, body: Acknowledgement) -> Target:
    """Note that an operator knows of the events that were discarded for a target, which ends the doctor's warning.

    Events that are discarded later are reported again, also those that `discarded` does not count.
    """
    target = target_of(type_name, name)
    services().registry.acknowledge_discards(target, body.discarded)
    return _one(target)


def _one(target: TargetId) -> Target:
    return _described(target)[0]


def _described(target: TargetId | None = None) -> list[Target]:
    with services().database.snapshot() as connection:
        statuses = read_status(connection, target)
        service = sync_events(services().settings.sync_events, read_api_settings(connection))
    now = now_ms()
    return [
        _resource(status.stored, service, status.counters, now) for status in statuses if may_see(status.stored.target)
    ]


def _brief() -> list[Target]:
    stored = services().registry.targets()  # before, so that no request holds a connection and waits for another
    with services().database.reading() as connection:
        service = sync_events(services().settings.sync_events, read_api_settings(connection))
        targets = with_failing(connection, stored)
    return [_resource(one, service) for one in targets if may_see(one.target)]


def _resource(
    stored: StoredTarget, service: SyncEvents, counters: TargetCounters | None = None, now: int = 0
) -> Target:
    oldest_age: Seconds | UnsetType = UNSET
    if counters is not None:
        oldest_age = max(0, now - counters.oldest) / 1000 if counters.oldest else None
    return Target.of(
        stored,
        arn=stored.target.arn(services().settings.region),
        type=stored.target.type,
        name=stored.target.name,
        reason=stored.state_reason,
        failed_in_row=stored.failing.attempts if stored.failing else 0,
        failing_since=format_time(stored.failing.since if stored.failing else 0),
        opening=Opening(state=stored.opening, at=format_time(stored.opening_at), reason=stored.opening_reason),
        mode="sync" if is_sync(stored.values, service) else "async",
        settings=services().registry.redacted_texts(stored),
        events=UNSET if counters is None else counters_of(counters),
        oldest_age=oldest_age,
        discarded_at=format_time(stored.discarded_at or 0),
        acknowledged_discards=stored.acknowledged,
    )


def counters_of(counters: TargetCounters) -> Counters:
    """Return a target's counters."""
    return Counters.of(counters)


def _wanted_settings(target: TargetId) -> tuple[Mapping[str, object], Mapping[str, str] | None]:
    """Return the checked settings of the request's body, with the stored secrets, and those stored; None: no target.

    Raises `BadSettings`, and `ApiProblem` for what the request's token may not set.
    """
    settings: Mapping[str, object] = json_object(request)
    before: Mapping[str, str] | None = None
    try:
        stored = services().registry.target(target)
        before = services().registry.readable_texts(stored)
        settings = with_kept_secrets(target.type, lambda: services().registry.texts(stored), settings)
    except UnknownTarget:
        pass
    if is_limited():
        _check_tenant(target.type, before or {}, texts(target.type, settings))
    wanted = load(target.type, settings)  # refuses settings without effect too, which MinIO's forms accept
    if is_limited():
        _check_host_files(target.type, before or {}, texts(target.type, settings), wanted)
        _check_load(target.type, before or {}, wanted)
        _check_addresses(before or {}, texts(target.type, settings))
    return settings, before


def _check_changeable(target: TargetId) -> None:
    """Raise `ReadOnlyTarget` if the environment has the target's settings."""
    with suppress(UnknownTarget):
        if services().registry.target(target).is_read_only:
            raise ReadOnlyTarget(f"{target} is set by MINIO_NOTIFY_… variables; test it by `bucketwire target test`")


def _check_tenant(type_name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Refuse what concerns more than the target; what is stored may stay. Raises `ApiProblem`."""
    cls = settings_type(type_name)
    stored = references(cls, before)
    for name, found in references(cls, after).items():
        if not set(found) <= set(stored.get(name, ())):
            raise _beyond_target(f"{name} refers to a secret of this host")
    for name, value in _OF_ALL.items():
        if _parsed(cls, after, name) == value != _parsed(cls, before, name):
            raise _beyond_target(f"{name} is {after[name]}, which concerns more than this target")
    for name in _SCHEDULES:
        if (schedule := _parsed(cls, after, name)) and schedule != _parsed(cls, before, name):
            raise _beyond_target(f"{name} schedules runs over every bucket in this target's events")


def _check_host_files(
    type_name: str, before: Mapping[str, str], after: Mapping[str, str], wanted: TargetSettings
) -> None:
    """Refuse to use what is this host's: a file, a socket, its role, a secret. Raises `ApiProblem`.

    What is stored may stay, but then the rest of the connection stays, too: it decides who gets to see that.
    """
    cls = settings_type(type_name)
    try:
        stored = set(load(type_name, before, lenient=True).host_files())
    except BadSettings:
        stored = set()
    used = set(wanted.host_files())
    for name, _ in sorted(used - stored):
        raise _beyond_target(f"{name} uses a file, a service, a socket or the role of this host")
    kept = sorted({name for name, _ in used} | {*references(cls, after)})
    if not kept:
        return
    for name in fields_of(cls):
        if name not in _OF_EVERY_TYPE and _parsed(cls, after, name) != _parsed(cls, before, name):
            raise _beyond_target(f"{name} is changed while {kept[0]} uses what is of this host")


def _check_load(type_name: str, before: Mapping[str, str], wanted: TargetSettings) -> None:
    """Refuse what may hold a worker's process for longer, or for more events at once, than is stored or allowed.

    Raises `ApiProblem`.
    """
    try:
        stored = load(type_name, before, lenient=True)
    except BadSettings:
        stored = None
    known = dict[str, float]()
    for name, seconds in () if stored is None else stored.time_limits():
        known[name] = max(known.get(name, 0.0), seconds)
    for name, seconds in wanted.time_limits():
        if seconds > max(MAX_LIMITED_SECONDS, known.get(name, 0.0)):
            limit = f"{seconds:g} s" if isfinite(seconds) else "without end"
            raise _beyond_target(f"{name} lets a worker wait {limit}, and {MAX_LIMITED_SECONDS:g} s is the most")
    for name, most in (("max_in_flight", MAX_LIMITED_IN_FLIGHT), ("batch_size", MAX_LIMITED_BATCH)):
        if (value := getattr(wanted, name)) > max(most, getattr(stored, name, 0)):
            raise _beyond_target(f"{name} is {value}, and {most} is the most")


def _check_addresses(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Refuse link-local addresses unless they are stored so. Raises `ApiProblem`.

    What names resolve to is checked by the workers, at each connection.
    """
    for name, text in after.items():
        for address in link_local_addresses(text) - link_local_addresses(before.get(name, "")):
            raise _beyond_target(f"{name} has {address}, which is link-local")


def _parsed(cls: type[TargetSettings], texts: Mapping[str, str], name: str) -> object:
    try:
        return fields_of(cls)[name].kind.parse(texts[name])
    except (KeyError, BadValue):  # none, or `load` refuses it
        return None


def _beyond_target(problem: str) -> ApiProblem:
    return ApiProblem("forbidden", f"{problem}; the token is limited, so it cannot set this", reason="limits")


@routes.post("/v1/targets/<type_name>/<name>/test")
@needs(ADMIN, limited=True)
@answers(TargetTest, "the test event is recorded", body=Nothing, status=202)
def send_test(type_name: str, name: str, body: Nothing) -> TargetTest:  # noqa: ARG001 - nothing else is accepted
    """Record a marked test event for this target only, independent of the rules.

    It is delivered like any other event, after those that are pending; `history` is the address of its delivery state.
    A namespace gets a PUT and the DELETE of the same object, so that it keeps nothing of them.
    """
    target = target_of(type_name, name)
    registry = services().registry
    stored = registry.target(target)
    check_active(stored)
    namespace = getattr(registry.settings(stored), "format", "") == "namespace"
    now, key = now_ms(), uuid.uuid4().hex
    events = make_test_events(key, now, namespace=namespace)
    [receipt] = Recorder(services().database, only_target=target, action="target.test").record([events])
    if isinstance(receipt, Exception):
        raise receipt
    arn = target.arn(services().settings.region)
    if isinstance(receipt, QueueFull):
        raise ApiProblem("queue-full", f"the queue of {arn} is full; no test event was recorded", {"targets": [arn]})
    return TargetTest(
        target=arn,
        ids=[event.id for event in events],
        bucket=TEST_BUCKET,
        key=key,
        history=f"/v1/events?{urlencode({'bucket': TEST_BUCKET, 'key': key})}",
    )


def run_settings_test(
    target: TargetId, settings: Mapping[str, str], *, allow_private: bool, limited: bool = False
) -> list[dict[str, Any]]:
    """Return the steps of a test: `step`, `ok`, `seconds`, `message`. Raises `ApiProblem` if others are running.

    The settings, which have secrets, are passed by standard input. A `limited` test reaches no link-local address.
    """
    if not _running_tests.acquire(blocking=False):
        raise ApiProblem("too-many-tests", "two tests of settings are running; try again in some seconds")
    try:
        given = {"settings": dict(settings), "allow_private": allow_private, "limited": limited}
        return _run_test(target, orjson.dumps(given))
    finally:
        _running_tests.release()


def _run_test(target: TargetId, given: bytes) -> list[dict[str, Any]]:
    command = [sys.executable, "-P", "-m", "bucketwire.start", _TEST_PROGRAM, str(target), "--json", "--settings"]
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=MAX_TEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return [_failed_step(MAX_TEST_SECONDS, f"no result within {MAX_TEST_SECONDS:g} s")]
    try:
        steps: list[dict[str, Any]] = orjson.loads(done.stdout)["steps"]
    except (ValueError, KeyError):  # a defect; what it wrote may quote a secret
        return [_failed_step(0.0, f"the test ended without a result, with exit code {done.returncode}")]
    return steps


def _failed_step(seconds: float, message: str) -> dict[str, Any]:
    return {"step": "test", "ok": False, "seconds": seconds, "message": message}


@routes.get("/v1/targets/<type_name>/<name>/partitions")
@needs(READ, limited=True)
@answers(Partitions, "the partitions")
def partitions(type_name: str, name: str) -> Partitions:
    """Return what waits in each partition of a target, and which worker has leased it.

    In a partition at most 1,000 events are counted, of the 10,000 sequence numbers after its cursor; `more` says that
    there may be more.
    """
    target = target_of(type_name, name)
    return Partitions(
        target=target.arn(services().settings.region),
        partitions=[
            Partition.of(state, holder=state.holder or None) for state in read_partitions(services().database, target)
        ],
    )


@routes.get("/v1/series")
@needs(READ, limited=True)
@answers(AllSeries, "the samples", query=SeriesQuery)
def show_series(query: SeriesQuery) -> AllSeries:
    """Return the samples of every target's counters, or of one target's, oldest first.

    Every 10 seconds for a day, every 5 minutes for 90 days. At most 50,000 samples; a request for more is refused.
    """
    if query.step not in RESOLUTIONS:
        raise BadMember("step", "is not kept", f"give {' or '.join(map(str, RESOLUTIONS))} (seconds)")
    since = now_ms() - _HOUR if query.since is None else query.since
    registry, target = services().registry, query.target
    if target is not None:
        require_target(target)
        targets = [registry.target(target)]
    else:
        targets = [stored for stored in registry.targets() if may_see(stored.target)]
    if query.width and target is None:
        raise BadMember("width", "merges the samples of one target", "give a target too")
    ids = [stored.row_id for stored in targets]
    database, resolution, most = services().database, RESOLUTIONS[query.step], _MAX_SAMPLES + 1
    if query.width > query.step:
        stored_samples = read_merged(
            database, ids[0], resolution, width=query.width, since=since, before=query.before, limit=most
        )
    else:
        stored_samples = read_series(database, ids, resolution, since=since, before=query.before, limit=most)
    if len(stored_samples) > _MAX_SAMPLES:
        hint = "give a shorter time, one target, or step=300"
        raise BadMember("since", f"selects more than {_MAX_SAMPLES} samples", hint)
    samples: dict[int, list[Sample]] = {row_id: [] for row_id in ids}
    for sample in stored_samples:
        samples[sample.target_id].append(_sample(sample))
    region = services().settings.region
    shown = [Series(target=stored.target.arn(region), samples=samples[stored.row_id]) for stored in targets]
    return AllSeries(step=query.step, series=shown)


def _sample(sample: series.Sample) -> Sample:
    return Sample.of(
        sample,
        oldest_age=_seconds(sample.oldest_age),
        p50=_seconds(percentile(sample.times, 0.5)),
        p99=_seconds(percentile(sample.times, 0.99)),
    )


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
