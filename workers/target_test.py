"""`python -m workers.target_test TYPE:NAME [--json]`: send a target a marked test event and report each step.

`bucketwire target test` executes this program. It uses neither the event log nor rules: it opens the adapter as a
worker does, and passes it the test events (`app.events.test_events`). The exit code is 0 if the target confirmed them,
else 1.
"""

import contextlib
import os
import socket
import ssl
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import orjson

from app.config.arn import TargetId, parse_target
from app.config.settings import Settings
from app.config.target_settings import BadSettings
from app.config.targets.base import TargetSettings
from app.events.model import Event
from app.events.test_events import make_test_events
from app.outbox.engine.database import Database, DatabaseUnavailable, describe_error, now_ms
from app.outbox.registry import open_registry
from app.outbox.targets import UnknownTarget
from workers.delivery.outcomes import Delivered, Failed, NotAttempted, Outcome, Rejected, Unavailable
from workers.endpoints import Endpoint, endpoints_of, tls_handshake
from workers.target_pool import as_served
from workers.targets import create
from workers.targets.base import Target, TargetUnavailable
from workers.targets.http_pool import PrivateAddressError
from workers.telemetry.redaction import RedactingTarget


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a test: what was done, whether it succeeded, how long it took, and a message about it."""

    step: str
    ok: bool
    seconds: float
    words: str


class _Stop(Exception):
    """A step failed with a message that is safe to show."""


def run_target_test(settings: TargetSettings, type_name: str) -> Iterator[Step]:
    """Yield each step when it is done; the first step that fails is the last one. `words` never hold a secret.

    With several endpoints (brokers, hosts) one reachable endpoint is enough: the others are reported, but do not make
    the test fail.
    """
    yield from (reached := _Reached(settings)).steps()
    if not reached.ok:
        return
    try:
        target = RedactingTarget(create(type_name, settings), settings)
    except Exception as error:  # noqa: BLE001 - its words may hold anything
        yield Step("login", False, 0.0, f"unforeseen {type(error).__name__}")
        return
    try:
        opened = _timed("login", lambda: _opened(target))
        yield opened
        if opened.ok:
            yield from _delivered(target, settings)
    finally:
        target.close()


class _Reached:
    """The steps that need no protocol, for every endpoint; `ok` is true afterwards if one of them was reached."""

    def __init__(self, settings: TargetSettings) -> None:
        self._settings = settings
        self.ok = False

    def steps(self) -> Iterator[Step]:
        try:
            found = endpoints_of(self._settings)
        except TargetUnavailable as error:
            yield Step("resolve", False, 0.0, error.reason)
            return
        failures: list[Step] = []
        for place in found:
            *made, last = _reach(place, self._settings.timeout)
            self.ok |= last.ok
            several = f"{place.address}: " if len(found) > 1 else ""
            shown = [Step(each.step, each.ok, each.seconds, several + each.words) for each in (*made, last)]
            yield from shown if last.ok else shown[:-1]
            failures += [] if last.ok else shown[-1:]
        for failure in failures:
            words = f"{failure.words} (another one answers)" if self.ok else failure.words
            yield Step(failure.step, self.ok, failure.seconds, words)


def _reach(place: Endpoint, timeout: float) -> Iterator[Step]:
    addresses: list[str] = []
    wire: list[socket.socket] = []

    def resolve() -> str:
        addresses.extend(place.resolve())
        return ", ".join(addresses)

    def connect() -> str:
        wire.append(place.connect(addresses, timeout))
        peer = wire[0].getpeername()
        return str(peer) if isinstance(peer, str) else f"{peer[0]} port {peer[1]}"

    try:
        for name, action in (("resolve", resolve), ("connect", connect)):
            step = _timed(name, action)
            yield step
            if not step.ok:
                return
        if place.context is not None:
            context, name = place.context, place.name or place.address.host
            yield _timed("tls", lambda: tls_handshake(wire[0], context(), name))
    finally:
        for each in wire:
            each.close()


def _opened(target: Target) -> str:
    target.open()
    return "logged in; what was missing is there now"


def _delivered(target: Target, settings: TargetSettings) -> Iterator[Step]:
    namespace = getattr(settings, "format", "") == "namespace"
    now = now_ms()
    written = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now / 1000))}.{now % 1000:03d}Z"
    names = ("deliver", "remove") if namespace else ("deliver",)
    for name, event in zip(names, make_test_events(uuid.uuid4().hex, now, written, namespace=namespace), strict=True):
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
        words, ok = action(), True
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this step that failed
        words, ok = _words(error), False
    if not ok and name == "login" and _is_tls(words):
        name = "tls"
    return Step(name, ok, time.monotonic() - began, words)


def _words(error: Exception) -> str:
    match error:
        case TargetUnavailable() | _Stop() | PrivateAddressError():
            words = str(error)
        case ssl.SSLCertVerificationError():
            words = f"certificate verify failed: {error.verify_message}"
        case TimeoutError():
            words = "no answer in time"
        case OSError():
            words = error.strerror or str(error)
        case _:
            words = f"unforeseen {type(error).__name__}"
    return words


def _is_tls(words: str) -> bool:
    """Return whether TLS made a login fail; it begins within the protocol, so only the adapter's message shows it."""
    return any(word in words for word in ("certificate", "SSL", "TLS"))


def look_up(target: TargetId) -> TargetSettings:
    """Return the target's settings as a worker reads them. Raises `BadSettings`, `UnknownTarget`."""
    service = Settings.from_environ(os.environ)
    with contextlib.closing(Database(service.database_url, pool_size=1)) as database:
        registry = open_registry(database, service)
        return as_served(registry.settings(registry.target(target)), service)


def main(arguments: Sequence[str]) -> int:
    """Run the program; return its exit code."""
    names = [each for each in arguments if each != "--json"]
    as_json = len(names) < len(arguments)
    target = parse_target(names[0])
    steps = []
    try:
        settings = look_up(target)
    except (BadSettings, UnknownTarget) as error:
        steps.append(Step("settings", False, 0.0, str(error)))
    except DatabaseUnavailable as error:
        steps.append(Step("settings", False, 0.0, f"the outbox database cannot be used: {describe_error(error)}"))
    else:
        for step in run_target_test(settings, target.type):
            steps.append(step)
            if not as_json:
                _tell(step)
    ok = bool(steps) and all(step.ok for step in steps)
    if as_json:
        found = {"target": str(target), "ok": ok, "steps": [asdict(step) for step in steps]}
        sys.stdout.write(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        if steps and steps[-1].step == "settings":
            _tell(steps[-1])
        sys.stdout.write(f"{target} takes events\n" if ok else f"{target} did not take the test event\n")
    return 0 if ok else 1


def _tell(step: Step) -> None:
    words = "".join(char if char.isprintable() else " " for char in step.words)
    sys.stdout.write(f"{step.step:>8}  {'ok' if step.ok else 'failed':<6}  {step.seconds * 1000:8.1f} ms  {words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
