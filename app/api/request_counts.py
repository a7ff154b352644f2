"""Count the requests of this process by route and status, and tell operators which were refused, and why.

A request costs a few microseconds and never waits: what is counted is in memory, within bounds, until a thread stores
it. While the database is away, that is tried again. A thread also writes the log lines, and for sign-ins the entries of
the audit log: the first of each kind at once, then one a minute with their number.
"""

import logging
import math
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.api.listen.broadcaster import SocketHandedOver
from app.api.wsgi_layers import PROBES, Refusal, refusal_of, route_of
from app.logs import clause, printable
from app.outbox import audit, refusals
from app.outbox.engine.clock import elapsed
from app.outbox.engine.database import Database
from app.outbox.policies import REFUSALS
from app.outbox.refusals import AnswerKind, RefusalKind, Refused
from app.outbox.tokens import AUDITED
from app.quantities import count_noun
from app.resources.refusal import HTTP, INTAKE, NOT_HTTP, OTHERS, SIGN_IN, describe_refusal, surface_of

log = logging.getLogger("bucketwire.api")

_FAILED = 500
_LAST_SECONDS = 1.0  # that a process which ends waits until all is stored
_MAX_ENTRIES = 1_000  # of the audit log that wait for the database
_MAX_ADDRESS = 64  # characters
_NOUNS = {INTAKE: "post", SIGN_IN: "sign-in"}

# Method and template of the path, the status, and why it was refused.
_Answer = tuple[tuple[str, str], int, str]


@dataclass(slots=True)
class _Line:
    """Refusals of a kind since the last log line about them, and when that was."""

    refused: Refused
    via: str
    logged_at: float = -math.inf

    @property
    def due(self) -> float:
        return self.logged_at + REFUSALS.line_seconds if self.refused.number else math.inf


class RequestCounts:
    """What this process has counted and not stored yet. Its thread runs while there is something to do."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._answers: dict[_Answer, int] = {}
        self._refused: dict[RefusalKind, Refused] = {}
        self._lines: dict[RefusalKind, _Line] = {}
        self._entries: list[tuple[audit.Actor, Mapping[str, Any]]] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def count(self, environ: Mapping[str, Any], status: int) -> None:
        """Count an answered request."""
        if environ.get("PATH_INFO") not in PROBES:  # which are many, and would keep an idle service busy
            self._count(route_of(environ), status, refusal_of(environ), environ.get("REMOTE_ADDR", ""))

    def count_unread(self, status: int) -> None:
        """Count a request that the server could not read, or that has failed there (500)."""
        self._count(("", ""), status, Refusal("internal" if status == _FAILED else NOT_HTTP), "")

    def close(self) -> None:
        """Store what is left, for a second at most: the process ends."""
        with self._lock:
            self._closed, thread = True, self._thread
        self._changed.set()
        if thread is not None:
            thread.join(_LAST_SECONDS)

    def _count(self, route: tuple[str, str], status: int, refusal: Refusal | None, address: str) -> None:
        answer = (route, status, "" if refusal is None else refusal.reason)
        with self._lock:
            if not self._answers:  # the thread may wait for a line that is due much later
                self._changed.set()
            self._answers[answer] = self._answers.get(answer, 0) + 1
            if refusal is not None:
                self._note(_written(*route), status, refusal, address)
            if self._thread is None and not self._closed:
                self._start()

    def _note(self, route: str, status: int, refusal: Refusal, address: str) -> None:
        surface = surface_of(route, refusal.reason)
        # The name of a person is whatever a provider says.
        kind = RefusalKind(surface, refusal.reason, printable(refusal.actor)[: REFUSALS.max_actor_characters])
        is_known = kind in self._lines or kind in self._refused
        if not is_known and max(len(self._lines), len(self._refused)) >= REFUSALS.max_kinds:
            kind = kind._replace(actor=OTHERS)
        now, fact = elapsed(), printable(refusal.fact)[: REFUSALS.max_fact_characters]
        line = self._lines.get(kind)
        if line is None:
            line = self._lines[kind] = _Line(Refused(now, now), route)
        for refused in (self._refused.setdefault(kind, Refused(now, now)), line.refused):
            refused.first = refused.first if refused.number else now
            refused.last, refused.number, refused.status = now, refused.number + 1, status
            refused.address, refused.fact = address[:_MAX_ADDRESS], fact
        if line.refused.number == 1:  # the thread may wait for longer than until this line is due
            self._changed.set()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="request-counts", daemon=True)
        with suppress(RuntimeError):  # the process may have no more threads; the next request tries again
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        try:
            self._work()
        except Exception:
            log.exception("requests are not counted for now")
            with self._lock:
                self._thread = None  # the next request starts another one

    def _work(self) -> None:
        """Store and log what is counted, each when it is due, until there is nothing left."""
        store_at = math.inf
        while True:
            now = elapsed()
            with self._lock:
                pause = REFUSALS.flush_seconds if self._refused or self._entries else REFUSALS.count_seconds
                store_at = min(store_at, now + pause) if self._answers or self._entries else math.inf
                wake_at = min([store_at, *(line.due for line in self._lines.values())])
                if wake_at == math.inf:
                    self._forget_lines(now)
                    self._thread = None
                    return
                closed = self._closed
            if not closed:
                self._changed.wait(max(0.0, wake_at - now))
                self._changed.clear()
            self._log_refusals()
            if closed or elapsed() >= store_at:
                store_at = math.inf
                self._store()
            if closed:
                return

    def _forget_lines(self, now: float) -> None:
        """Forget kinds of which nothing was refused for a while: the next one is logged at once again."""
        for kind, line in list(self._lines.items()):
            if not line.refused.number and now - line.logged_at > REFUSALS.line_seconds:
                del self._lines[kind]

    def _log_refusals(self) -> None:
        with self._lock:
            now = elapsed()
            due = [(kind, line.via, line.refused) for kind, line in self._lines.items() if line.due <= now]
            for kind, _, _ in due:
                self._lines[kind].logged_at, self._lines[kind].refused = now, Refused(now, now)
            self._forget_lines(now)
        for kind, via, refused in due:
            if kind.surface != HTTP:  # the server has logged these, each kind with its problem
                _log_refused(kind, via, refused)
            if kind.surface == SIGN_IN and len(self._entries) < _MAX_ENTRIES:
                actor = audit.Actor(kind.actor or "unknown", refused.address, via)
                details: dict[str, Any] = {"reason": kind.reason, "sign_ins": refused.number}
                if refused.fact:
                    details["fact"] = clause(refused.fact.lstrip(": "))
                self._entries.append((actor, details))

    def _store(self) -> None:
        with self._lock:
            answers, self._answers = self._answers, {}
            refused, self._refused = self._refused, {}
            entries, self._entries = self._entries, []

        def add_entries(connection: sa.Connection) -> None:
            for actor, details in entries:
                with audit.acting(actor):
                    audit.record(connection, "session.refuse", AUDITED, details)

        numbers = {
            AnswerKind(_written(*route), status, reason): number for (route, status, reason), number in answers.items()
        }
        try:
            with self._database.answering_within(REFUSALS.statement_seconds):
                refusals.record(self._database, numbers, refused, add_entries)
        except Exception as error:  # noqa: BLE001 - the database is away, or its tables are missing: others say so
            log.debug("requests that were counted are not stored: %s", error)
            with self._lock:
                self._put_back(answers, refused)
                self._entries = entries + self._entries

    def _put_back(self, answers: Mapping[_Answer, int], refused: Mapping[RefusalKind, Refused]) -> None:
        for answer, number in answers.items():
            self._answers[answer] = self._answers.get(answer, 0) + number
        for kind, earlier in refused.items():
            later = self._refused.setdefault(kind, earlier)
            if later is not earlier:
                later.first, later.number = earlier.first, later.number + earlier.number


class CountedRequests:
    """A WSGI application whose requests are counted."""

    def __init__(self, app: Any, counts: RequestCounts) -> None:
        self._app = app
        self._counts = counts

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request."""
        counts = self._counts

        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            counts.count(environ, int(status[:3]))
            return start_response(status, headers, *error)

        try:
            return self._app(environ, start)  # type: ignore[no-any-return]  # the application's
        except SocketHandedOver:
            counts.count(environ, 200)
            raise


def _written(method: str, route: str) -> str:
    return f"{method} {route}" if method else route


def _log_refused(kind: RefusalKind, via: str, refused: Refused) -> None:
    what = count_noun(refused.number, _NOUNS.get(kind.surface, "request"))
    was = "was" if refused.number == 1 else "were"
    log.warning(
        "%s %s refused (%s, %s): %s; the last came from %s",
        what,
        was,
        refused.status,
        kind.reason,
        describe_refusal(kind.reason, kind.actor, refused.fact),
        refused.address or "an unknown address",
        extra={
            "surface": kind.surface, "reason": kind.reason, "status": refused.status, "actor": kind.actor,
            "address": refused.address, "route": via, "requests": refused.number,
        },
    )  # fmt: skip
