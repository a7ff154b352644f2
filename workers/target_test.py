"""`python -m workers.target_test TYPE:NAME [--json] [--settings]`: send a target a marked test event, report each step.

`bucketwire target test` executes this program, and so does the API, with `--settings`: then settings that are not
stored are read from standard input, as JSON, `{"settings": {…}, "allow_private": false, "limited": false}`; `limited`
says that a limited token has asked, for which no link-local address is reached. It uses neither the event log
nor rules: it opens the adapter as a worker does, and passes it the test events (`app.events.own_events`). The exit
code is 0 if the target confirmed them, else 1.
"""

import contextlib
import os
import signal
import socket
import ssl
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from app.cli_common.output import step_line
from app.config.arn import TargetId, parse_target
from app.config.settings import Settings
from app.config.target_settings import BadSettings, load
from app.config.targets.base import TargetSettings
from app.events.model import Event
from app.events.own_events import make_test_events
from app.outbox.declared import UnknownTarget
from app.outbox.engine.database import Database, DatabaseUnavailable, describe_error, now_ms
from app.outbox.registry import open_registry
from workers.delivery.outcomes import Delivered, Failed, NotAttempted, Outcome, Rejected, Unavailable
from workers.targets import create, tcp
from workers.targets.base import Adapter, Target, TargetUnavailable
from workers.targets.http_pool import PrivateAddressError
from workers.targets.tcp import Endpoint, tls_handshake
from workers.telemetry.redaction import RedactingTarget

_MAX_SECONDS = 60  # of a test by the API, which ends it before


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a test: what was done, whether it succeeded, how long it took, and a message about it."""

    step: str
    ok: bool
    seconds: float
    message: str


class _Stop(Exception):
    """A step failed with a message that is safe to show."""


def run_target_test(settings: TargetSettings, type_name: str) -> Iterator[Step]:
    """Yield each step when it is done; the first step that fails is the last one. No message contains a secret.

    With several endpoints (brokers, hosts) one reachable endpoint is enough: the others are reported, but do not make
    the test fail.
    """
    try:
        adapter = create(type_name, settings)
    except Exception as error:  # noqa: BLE001 - its driver cannot be imported, and its message may contain anything
        yield Step("login", False, 0.0, _describe_error(error))
        return
    yield from (checks := _EndpointChecks(adapter, settings.timeout)).steps()
    if not checks.ok:
        return
    target = RedactingTarget(adapter, settings)
    try:
        opened = _timed("login", lambda: _opened(target))
        yield opened
        if opened.ok:
            yield from _delivered(target, settings)
    finally:
        target.close()


class _EndpointChecks:
    """The steps that need no protocol, for every endpoint; `ok` is true afterwards if one of them was reached."""

    def __init__(self, adapter: Adapter, timeout: float) -> None:
        self._adapter = adapter
        self._timeout = timeout
        self.ok = False

    def steps(self) -> Iterator[Step]:
        try:
            endpoints = self._adapter.endpoints()
        except TargetUnavailable as error:
            yield Step("resolve", False, 0.0, error.reason)
            return
        failures: list[Step] = []
        for endpoint in endpoints:
            steps = list(_reach(endpoint, self._timeout))
            reached = steps[-1].ok
            self.ok |= reached
            if len(endpoints) > 1:
                steps = [replace(step, message=f"{endpoint.address}: {step.message}") for step in steps]
            yield from steps if reached else steps[:-1]
            failures += [] if reached else steps[-1:]
        for failure in failures:
            message = f"{failure.message} (another endpoint answers)" if self.ok else failure.message
            yield replace(failure, ok=self.ok, message=message)


def _reach(endpoint: Endpoint, timeout: float) -> Iterator[Step]:
    addresses: list[str] = []
    sockets: list[socket.socket] = []

    def resolve() -> str:
        addresses.extend(endpoint.resolve())
        return ", ".join(addresses)

    def connect() -> str:
        sockets.append(endpoint.connect(addresses, timeout))
        peer = sockets[0].getpeername()
        return str(peer) if isinstance(peer, str) else f"{peer[0]} port {peer[1]}"

    try:
        for name, action in (("resolve", resolve), ("connect", connect)):
            step = _timed(name, action)
            yield step
            if not step.ok:
                return
        if endpoint.context is not None:
            context, name = endpoint.context, endpoint.name or endpoint.address.host
            yield _timed("tls", lambda: tls_handshake(sockets[0], context(), name))
    finally:
        for opened in sockets:
            opened.close()


def _opened(target: Target) -> str:
    target.open()
    return "logged in; the target is ready"


def _delivered(target: Target, settings: TargetSettings) -> Iterator[Step]:
    namespace = getattr(settings, "format", "") == "namespace"
    names = ("deliver", "remove") if namespace else ("deliver",)
    for name, event in zip(names, make_test_events(uuid.uuid4().hex, now_ms(), namespace=namespace), strict=True):
        step = _timed(name, lambda event=event: _confirmed(target, event))  # type: ignore[misc]  # mypy, of a default
        yield step
        if not step.ok:
            return


def _confirmed(target: Target, event: Event) -> str:
    outcomes: Sequence[Outcome] = target.deliver([event], 1)
    match outcomes[0]:
        case Delivered():
            return f"{event.name} of {event.path} confirmed, event {event.id}"
        case Failed(reason=reason) | Rejected(reason=reason) | Unavailable(reason=reason):
            raise _Stop(reason)
        case NotAttempted():
            raise _Stop("the event was not sent")  # no adapter returns this for a call's only event


def _timed(name: str, action: Callable[[], str]) -> Step:
    began = time.monotonic()
    try:
        message, ok = action(), True
    except Exception as error:  # noqa: BLE001 - any error means that this step failed
        message, ok = _describe_error(error), False
    if not ok and name == "login" and _is_about_tls(message):
        name = "tls"
    return Step(name, ok, time.monotonic() - began, message)


def _describe_error(error: Exception) -> str:
    match error:
        case TargetUnavailable() | _Stop() | PrivateAddressError():
            message = str(error)
        case ssl.SSLCertVerificationError():
            message = f"certificate verify failed: {error.verify_message}"
        case TimeoutError():
            message = "no answer in time"
        case OSError():
            message = error.strerror or str(error)
        case _:
            message = f"unexpected {type(error).__name__}"
    return message


def _is_about_tls(message: str) -> bool:
    """Return whether TLS made a login fail; it begins within the protocol, so only the adapter's message shows it."""
    return any(word in message for word in ("certificate", "SSL", "TLS"))


def read_settings(target: TargetId) -> TargetSettings:
    """Return the target's settings as a worker reads them. Raises `BadSettings`, `UnknownTarget`."""
    service = Settings.from_environ(os.environ)
    with contextlib.closing(Database(service.database_url, pool_size=1)) as database:
        registry = open_registry(database, service)
        return registry.settings(registry.target(target)).served(allow_private=service.allow_private)


def given_settings(target: TargetId, given: Mapping[str, Any]) -> TargetSettings:
    """Return the settings that the API passes. Raises `BadSettings`."""
    return load(target.type, given["settings"]).served(allow_private=given["allow_private"])


def main(arguments: Sequence[str]) -> int:
    """Run the program; return its exit code."""
    names = [argument for argument in arguments if not argument.startswith("--")]
    as_json = "--json" in arguments
    target = parse_target(names[0])
    steps = []
    is_limited = False
    try:
        if "--settings" in arguments:
            signal.alarm(_MAX_SECONDS)  # the API may be gone that would end this process
            given = orjson.loads(sys.stdin.buffer.read())
            is_limited = bool(given.get("limited"))
            settings = given_settings(target, given)
        else:
            settings = read_settings(target)
    except (BadSettings, UnknownTarget) as error:
        steps.append(Step("settings", False, 0.0, str(error)))
    except DatabaseUnavailable as error:
        steps.append(Step("settings", False, 0.0, f"the outbox database cannot be used: {describe_error(error)}"))
    else:
        with tcp.refusing_link_local(when=is_limited):
            for step in run_target_test(settings, target.type):
                steps.append(step)
                if not as_json:
                    _print(step)
    ok = bool(steps) and all(step.ok for step in steps)
    if as_json:
        result = {"target": str(target), "ok": ok, "steps": [asdict(step) for step in steps]}
        sys.stdout.write(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        if steps and steps[-1].step == "settings":
            _print(steps[-1])
        sys.stdout.write(f"{target} accepts events\n" if ok else f"{target} did not accept the test event\n")
    return 0 if ok else 1


def _print(step: Step) -> None:
    message = "".join(char if char.isprintable() else " " for char in step.message)
    sys.stdout.write(f"{step_line(step.step, message, ok=step.ok, seconds=step.seconds)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
