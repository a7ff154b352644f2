"""Error responses of the API: one table of problem types, all of them sent as RFC 9457 JSON."""

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import orjson
import sqlalchemy as sa
from flask import Flask, Request, Response, g, has_request_context, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from app.api.wsgi_layers import Refusal, set_refusal
from app.config.errors import BadValue
from app.config.settings import ApiToken
from app.config.target_settings import BadSettings
from app.events.errors import BadEvents
from app.outbox.buckets import UnknownBucket
from app.outbox.declared import StoredTarget, UnknownTarget
from app.outbox.engine.database import DatabaseUnavailable
from app.outbox.engine.db_errors import is_full, outbox_state
from app.outbox.errors import (
    AlreadyRunning,
    BadSelection,
    LogLost,
    NothingToRepair,
    ReadOnlySource,
    SourceInUse,
    StillRejected,
    TokenExists,
    TokensUnknown,
    UnknownMessage,
    UnknownRun,
    UnknownSource,
    UnseenBucket,
)
from app.outbox.registry import ReadOnlyTarget, TargetInUse
from app.resources.declaration import BadMember
from app.resources.refusal import WRONG_PATH
from app.rules.filters import MatchingBusy
from app.rules.model import BadRules

log = logging.getLogger("bucketwire.api")

_MAX_MEMBER_CHARACTERS = 1024  # of a rejected value that is sent back
_MAX_DETAIL_CHARACTERS = 4096
_MAX_PROBLEMS = 1000

# The status and title of each problem's `type`; they are the same for every occurrence.
PROBLEM_TYPES: Mapping[str, tuple[int, str]] = {
    "bad-events": (400, "The body has no valid events"),
    "bad-request": (400, "Invalid request"),
    "bad-value": (400, "Invalid value"),
    "bad-settings": (400, "Invalid settings"),
    "bad-rule": (400, "Invalid rule"),
    "unauthorized": (401, "A valid token is required"),
    "forbidden": (403, "The token does not allow this"),
    "loopback-only": (403, "Without tokens, only this machine may call the API"),
    "not-found": (404, "Not found"),
    "unknown-target": (404, "Unknown target"),
    "unknown-source": (404, "Unknown source"),
    "unknown-bucket": (404, "Unknown bucket"),
    "wrong-method": (405, "Method not allowed"),
    "target-in-use": (409, "The target is in use"),
    "source-in-use": (409, "The source has rejected messages"),
    "still-rejected": (409, "The message still has no valid events"),
    "already-running": (409, "The target is being reconciled already"),
    "nothing-to-repair": (409, "The run found no drift"),
    "log-lost": (409, "The event log is older than what was read of it"),
    "token-exists": (409, "A token of that name exists"),
    "read-only-target": (409, "The target is configured in the environment"),
    "read-only-source": (409, "The source is configured in the environment"),
    "too-large": (413, "The body is too large"),
    "unknown-encoding": (415, "Unknown content encoding"),
    "not-json": (415, "The body must be JSON"),
    "internal": (500, "Internal error"),
    "overloaded": (503, "Too much memory is in use"),
    "too-many-streams": (503, "Too many streams"),
    "too-many-tests": (503, "Too many tests of settings"),
    "database-unavailable": (503, "The outbox database is unavailable"),
    "matching-busy": (503, "Another event is costly to compare with the rules"),
    "queue-full": (503, "A target's queue is full"),
    "spool-unavailable": (503, "The spool folder is not writable"),
    "database-full": (507, "The outbox database is full"),
    "spool-full": (507, "The spool folder's disk is full"),
}
# Errors whose message is the problem's detail.
_SAID_BY_THE_ERROR: Mapping[type[Exception], str] = {
    UnknownSource: "unknown-source",
    UnknownBucket: "unknown-bucket",
    TargetInUse: "target-in-use",
    SourceInUse: "source-in-use",
    ReadOnlyTarget: "read-only-target",
    ReadOnlySource: "read-only-source",
    StillRejected: "still-rejected",
    AlreadyRunning: "already-running",
    NothingToRepair: "nothing-to-repair",
    LogLost: "log-lost",
    TokenExists: "token-exists",
    MatchingBusy: "matching-busy",
}
_INTAKE = "events.record"  # the endpoint that frontends post to
_REFUSALS = frozenset((401, 403, 413, 503, 507))  # statuses of other routes by which a caller is refused
_RETRY_AFTER = {
    "database-unavailable": 5,
    "matching-busy": 2,
    "queue-full": 10,
    "overloaded": 2,
    "too-many-streams": 10,
    "too-many-tests": 5,
    "spool-unavailable": 10,
    "database-full": 30,
    "spool-full": 30,
}  # s


class ClientGone(ConnectionResetError):
    """The client has closed its connection within a request, or has sent nothing of it for too long."""


@dataclass
class ApiProblem(Exception):
    """A problem of one of the `PROBLEM_TYPES`, raised wherever it is detected.

    `members` are specific to the problem: the field, the position, the names. `status` differs from the type's status
    only if the parser has a more precise one. Operators see the `reason` (`app.resources.refusal`), if it is more
    precise than the type, whose request it is (`actor`, as in the audit log), if that is not known otherwise, and a
    `fact`, in which there is nothing of the request.
    """

    kind: str
    detail: str
    members: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 0
    reason: str = ""
    actor: str = ""
    fact: str = ""

    def response(self) -> Response:
        """Return the problem as an HTTP response."""
        title, status = PROBLEM_TYPES[self.kind][1], self.http_status
        body = {"type": f"urn:bucketwire:problem:{self.kind}", "title": title, "status": status, "detail": self.detail}
        members = {name: value for name, value in self.members.items() if value is not None}
        response = Response(orjson.dumps(body | members), status, mimetype="application/problem+json")
        response.headers.update(self.http_headers)
        return response

    @property
    def http_status(self) -> int:
        """The status of the answer."""
        return self.status or PROBLEM_TYPES[self.kind][0]

    @property
    def http_headers(self) -> Mapping[str, str]:
        """The headers of the answer, in whatever form it is written."""
        retry = {"Retry-After": str(_RETRY_AFTER[self.kind])} if self.kind in _RETRY_AFTER else {}
        return retry | dict(self.headers)


@singledispatch
def to_problem(error: Exception) -> ApiProblem:
    """Return the problem for an exception. An unexpected exception is logged under an id that the problem contains."""
    number = uuid.uuid4().hex
    log.error("unexpected error %s", number, exc_info=error)
    return ApiProblem("internal", "search the API's log for this id", {"id": number})


@to_problem.register
def _(error: ApiProblem) -> ApiProblem:
    return error


@to_problem.register
def _(_error: ClientGone) -> ApiProblem:
    return ApiProblem("bad-request", "the connection was lost within the body", reason="client-gone")


@to_problem.register
def _(error: BadEvents) -> ApiProblem:
    members = {"index": error.index, "field": error.field, "offset": error.offset, "limit": error.limit}
    reason = "too-large" if error.status == PROBLEM_TYPES["too-large"][0] else ""
    fact = "" if error.index is not None else ": it is not JSON"
    return ApiProblem("bad-events", error.problem, members, status=error.status, reason=reason, fact=fact)


@to_problem.register
def _(error: BadSettings) -> ApiProblem:
    wrong = [
        {
            "field": problem.key[:_MAX_MEMBER_CHARACTERS],
            "value": problem.value[:_MAX_MEMBER_CHARACTERS],
            "problem": problem.problem,
            "hint": problem.hint,
        }
        for problem in error.problems[:_MAX_PROBLEMS]
    ]
    kind = "bad-rule" if isinstance(error, BadRules) else "bad-settings"
    return ApiProblem(kind, str(error)[:_MAX_DETAIL_CHARACTERS], {"errors": wrong})


@to_problem.register
def _(error: BadValue) -> ApiProblem:
    return ApiProblem("bad-value", f"{error.problem}; {error.hint}" if error.hint else error.problem)


@to_problem.register
def _(error: BadMember) -> ApiProblem:
    field = error.field[:_MAX_MEMBER_CHARACTERS]  # of an unknown member it is as long as the client makes it
    return ApiProblem("bad-value", f"{field} {error.problem}; {error.hint}"[:_MAX_DETAIL_CHARACTERS], {"field": field})


@to_problem.register
def _(error: BadSelection) -> ApiProblem:
    return ApiProblem("bad-value", str(error), {"field": error.field})


@to_problem.register
def _(error: UnknownTarget) -> ApiProblem:
    detail = f"there is no target {error.target}" if _is_limited() else str(error)
    return ApiProblem("unknown-target", detail)


@to_problem.register
def _(error: UnseenBucket) -> ApiProblem:
    return ApiProblem("unknown-bucket", error.detail if _is_limited() else str(error), {"field": "bucket"})


def _is_limited() -> bool:
    """Return whether the request's token is limited to buckets or targets: then it learns no names of others."""
    return has_request_context() and getattr(g.get("token"), "is_limited", False)


@to_problem.register
def _(error: UnknownMessage) -> ApiProblem:
    return ApiProblem("not-found", f"the source has no rejected message {error}")


@to_problem.register
def _(error: UnknownRun) -> ApiProblem:
    return ApiProblem("not-found", f"{error}; GET /v1/reconciliations shows those there are"[:_MAX_DETAIL_CHARACTERS])


@to_problem.register
def _(_error: NotFound) -> ApiProblem:
    return ApiProblem("not-found", "there is no such path; GET /openapi.json describes those there are")


@to_problem.register
def _(error: MethodNotAllowed) -> ApiProblem:
    allowed = ", ".join(sorted(error.valid_methods or ()))
    return ApiProblem("wrong-method", f"the methods here are {allowed}", headers={"Allow": allowed})


@to_problem.register
def _(error: HTTPException) -> ApiProblem:
    return ApiProblem("bad-request", error.description or error.name, status=error.code or 400)


def is_refusal(error: Exception) -> bool:
    """Return whether an error is an answer to the caller, rather than a defect or an unavailable database."""
    return to_problem.dispatch(type(error)) not in (to_problem.dispatch(Exception), database_unavailable)


def check_active(stored: StoredTarget) -> None:
    """Raise `ApiProblem` for a target for which no events are recorded: disabled, or with invalid settings."""
    hints = {"disabled": "enable it first", "broken": "correct its settings first"}
    if stored.state in hints:
        problem = f"target is {stored.state}" + (f" ({stored.state_reason})" if stored.state_reason else "")
        raise ApiProblem("bad-value", f"{problem}; {hints[stored.state]}", {"field": "target"})


def database_unavailable(error: Exception) -> ApiProblem:
    """Return the problem for an unavailable, full or uninitialised database.

    The database's message is logged and not sent, because it may contain the database's address.
    """
    outbox_state.failed(error)
    if is_full(error):
        return ApiProblem(
            "database-full", "its disk is full, or its file at its limit; nothing was recorded, send the request later"
        )
    if isinstance(error, sa.exc.ProgrammingError):
        return ApiProblem(
            "database-unavailable", "its tables are missing or of another version: run `bucketwire migrate`"
        )
    if has_request_context() and request.method in ("GET", "HEAD"):  # it changes nothing
        return ApiProblem("database-unavailable", "nothing could be read; try again")
    return ApiProblem("database-unavailable", "the outcome of the request is unknown; retrying is safe")


def _by_message(error: Exception) -> ApiProblem:
    kind = next(kind for cls, kind in _SAID_BY_THE_ERROR.items() if isinstance(error, cls))
    return ApiProblem(kind, str(error)[:_MAX_DETAIL_CHARACTERS])


for known in _SAID_BY_THE_ERROR:
    to_problem.register(known, _by_message)
for kind in (*DatabaseUnavailable, sa.exc.ProgrammingError, TokensUnknown, TimeoutError):
    to_problem.register(kind, database_unavailable)


def install(app: Flask, write: Callable[[ApiProblem], Response]) -> None:
    """Answer every error of the server's app with a problem, as `write` makes an answer of it."""
    from gunicorn.http.errors import NoMoreData, ParseException  # noqa: PLC0415 - only a server reads from connections

    @to_problem.register(NoMoreData)
    def _cut_off(_error: Exception) -> ApiProblem:  # within chunks
        return to_problem(ClientGone())

    @to_problem.register(ParseException)
    def _bad_chunk(_error: Exception) -> ApiProblem:  # a malformed head gets no further than the server
        return ApiProblem("bad-request", "the body is not valid chunked encoding (RFC 9112, section 7.1)")

    @app.errorhandler(Exception)
    def _answer(error: Exception) -> Response:
        problem = to_problem(error)
        note_refusal(problem)
        return write(problem)


def note_refusal(problem: ApiProblem) -> None:
    """Have this request counted as refused, if it posts events, or the caller was refused, or could not be served."""
    asked: Request = request._get_current_object()  # type: ignore[attr-defined]  # each use of the proxy takes time
    if asked.endpoint == _INTAKE or problem.http_status in _REFUSALS:
        token: ApiToken | None = g.get("token")
        actor = problem.actor or ("" if token is None else token.actor)
        set_refusal(asked.environ, Refusal(problem.reason or problem.kind, actor, problem.fact))
    elif _posts_elsewhere(asked):
        set_refusal(asked.environ, Refusal(WRONG_PATH))


def _posts_elsewhere(asked: Request) -> bool:
    """Return whether a sender with a token, and with another path in its settings, posts events; no scan has one."""
    others = asked.path.startswith(("/v1/", "/console")) and not asked.path.startswith("/v1/event")
    return asked.endpoint is None and asked.method == "POST" and not others and "Authorization" in asked.headers
