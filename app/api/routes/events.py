"""Record posted events durably before the answer.

If traces are exported, the request has a span, and within it the append of its events. The events get the context of
the append, so that whatever happens to them later follows it.
"""

import errno
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import sqlalchemy as sa
from flask import Blueprint, Flask, Request, Response, g, request
from msgspec import UNSET, UnsetType

from app import telemetry
from app.api import answer_forms
from app.api.auth import INGEST, PUBLIC, may_see, needs, require_bucket
from app.api.description import answers, json_response
from app.api.errors import ApiProblem, database_unavailable
from app.api.request_body import event_headers, read_body
from app.api.services import end_reading, has_work_share, services, work_share
from app.api.wsgi_layers import refusal_of
from app.config.arn import TargetId
from app.config.errors import did_you_mean
from app.config.settings import ApiToken
from app.events.frontends import S3_FRONTENDS, Frontend
from app.events.frontends.clouds import B2, B2_SIGNATURE_HEADER, is_signed_by_b2
from app.events.limits import is_larger
from app.events.model import Event, by_request, trace_of
from app.events.parsing import EventGridValidation, Parsed, SnsConfirmation, parse
from app.logs import Repetitions
from app.outbox.engine.database import VALUE_ERRORS, describe_error, now_ms
from app.outbox.log import append
from app.outbox.log.append import QueueFull
from app.outbox.log.routing import MatchingTooSlow
from app.outbox.log.spool import Spool
from app.resources.declaration import FLAG, BadMember
from app.resources.event import Receipt, RecordQuery, RefusedRecord
from app.resources.service import Welcome
from app.telemetry.tracing import Span, Tracing, append_span, in_span

log = logging.getLogger("bucketwire.api")
_repetitions = Repetitions()
routes = Blueprint("events", __name__)

_BODY = {
    "required": True,
    "description": "Notifications of MinIO, RustFS, Ceph, AWS (S3, SNS, EventBridge), Versity, NooBaa, StorageGRID, "
    "Scality, Ozone, Storj, Google Cloud Storage, Azure, Backblaze B2, Cloudflare R2, Tigris, Oracle Cloud, "
    "CloudEvents or SeaweedFS, a bare record, an array, or JSON lines; may be compressed with gzip",
    "content": {"application/json": {"schema": {}}, "application/x-ndjson": {"schema": {}}},
}
_COPIES, _BESIDE_RECORD = 4, 2000  # bytes for each character of a record, and for the other members of an event
_TO_CONSOLE = ("a request that accepts HTML before JSON is led to the console", None)
_UNSIGNED = f"events of Backblaze B2 need the header {B2_SIGNATURE_HEADER}: set a signing secret in their rule"
_NOT_SIGNED = (
    f"{B2_SIGNATURE_HEADER} is not the signature of this body by any secret in BUCKETWIRE_B2_SIGNING_SECRETS, which "
    "needs that of each rule"
)
_MAX_NAMED = 3  # targets that operators see
_ASSUMED_EVENT = 4_000_000  # bytes that every database accepts, also one whose limit is not known yet

# Seconds to wait for the commit: senders give up after 5 s (EventBridge) or 10 s (SeaweedFS). With a spool folder there
# is an alternative to waiting that long.
_PATIENCE, _PATIENCE_WITH_SPOOL = 9.0, 2.5
_INTAKE = "events.record"  # the endpoint that frontends post to


@routes.post("/v1/events", provide_automatic_options=False)
@needs(INGEST, limited=True)
@answers(
    Receipt,
    "the events are recorded; to CloudEvents without content",
    query=RecordQuery,
    parses=False,
    content=_BODY,
    status=202,
    other_answers=answer_forms.DESCRIBED,
)
def record() -> Receipt | Response:
    """Record events.

    A 202 means that the events are recorded durably: in the outbox, or in the spool folder while the database is
    unavailable. After any other answer, or none, send the request again: recording is idempotent, so an event that
    arrives twice is recorded once. An SNS subscription confirmation is answered with 202 and logged for a person. Calls
    of SNS, CloudEvents, deliveries of Firehose, B2, Tigris and Event Grid's handshake are answered as these ask.
    """
    parsed = _parsed()
    if parsed.handshake is not None and not parsed.events:
        return _agreed(parsed.handshake)
    return answer_forms.accept(_recorded(parsed), parsed)


def _recorded(parsed: Parsed) -> Receipt:
    if has_work_share():
        end_reading()
        work_share().resize(min(work_share().size, _bytes_of(parsed.events)))
    for bucket in {event.bucket for event in parsed.events}:
        require_bucket(bucket)
    if not parsed.events:
        return _receipt(append.Receipt(), parsed)
    feeder = services().feeder
    if feeder is None:
        return _answer(_append(parsed.events, _PATIENCE), parsed)
    feeder.started()
    try:
        if not feeder.spool.pending():
            return _answer(_append(parsed.events, _PATIENCE_WITH_SPOOL), parsed)
    except (sa.exc.SQLAlchemyError, TimeoutError) as error:
        database_unavailable(error)
    except OSError as error:
        raise _spool_problem(error) from None
    return _spooled(feeder.spool, parsed)


@routes.route("/v1/events", methods=["OPTIONS"])
@needs(INGEST, limited=True)
@answers(None, "events may be posted here", status=200)
def agree() -> Response:
    """Agree with a sender of CloudEvents that asks by `WebHook-Request-Origin` whether it may send, at any rate."""
    headers = {"Allow": "GET, HEAD, OPTIONS, POST"}
    if origin := request.headers.get("WebHook-Request-Origin"):
        headers |= {"WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": "*"}
    response = Response(status=200, headers=headers)
    del response.headers["Content-Type"]
    return response


@routes.get("/")
@needs(PUBLIC)
@answers(Welcome, "the service responds", other_answers={303: _TO_CONSOLE})
def root() -> Welcome | Response:
    """Answer senders that probe the address, such as RustFS; lead a browser to the console."""
    if request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html":
        return Response(status=303, headers={"Location": "console/", "Vary": "Accept"})
    return Welcome(name="bucketwire", events="/v1/events", description="/openapi.json")


def _bytes_of(events: Sequence[Event]) -> int:
    """Return what events take until they are recorded: their texts, and copies of them on their way to the database."""
    return sum([_COPIES * len(event.record) + _BESIDE_RECORD for event in events])


def _parsed() -> Parsed:
    made = services()
    asked: Request = request._get_current_object()  # type: ignore[attr-defined]  # each use of the proxy takes time
    token: ApiToken | None = g.token
    partial = FLAG.read("partial", asked.args.get("partial") or False) if asked.query_string else False
    name = asked.args.get("frontend", "") if asked.query_string else ""
    sender = _sender(name or (token.frontend if token else ""))
    body = read_body(asked, made.settings.body_limit)
    answer_forms.settle(body)
    parsed = parse(
        body,
        event_headers(asked),
        now_ms=now_ms(),
        limits=made.limits,
        partial=partial,
        sender=sender,
        tenant=token.tenant if token else "",
        origin=by_request(token.name if token else ""),
    )
    secrets = made.settings.b2_signing_secrets
    if secrets and B2.name in parsed.senders:
        signature = asked.headers.get(B2_SIGNATURE_HEADER, "")
        if not is_signed_by_b2(body, signature, secrets):
            raise ApiProblem("unauthorized", _NOT_SIGNED if signature else _UNSIGNED, reason="bad-signature")
    return parsed


def _sender(name: str) -> Frontend | None:
    """Return the frontend that the request or its token names; None if each record shows who sent it."""
    if name and name not in S3_FRONTENDS:
        raise BadMember("frontend", "is not the name of a frontend", did_you_mean(name[:64], sorted(S3_FRONTENDS)))
    return S3_FRONTENDS[name] if name else None


def _append(events: Sequence[Event], patience: float) -> append.Receipt | QueueFull:
    try:
        with appending("append", events) as traced:
            return services().commits.append(traced, patience)
    except MatchingTooSlow as error:
        detail = (
            f"comparing the events with the regular expressions of the rules takes too long ({error}); nothing was "
            "recorded. Send fewer events in a request, or use simpler expressions"
        )
        raise ApiProblem("too-large", detail, fact=": comparing them with the rules takes too long") from None
    except VALUE_ERRORS as error:
        said = describe_error(error)
        if number := _repetitions.take(said):
            log.warning("the database refuses an event: %s", said, extra={"requests": number})
        detail = (
            "the outbox database refuses one of these events and accepts others; nothing of the request was recorded. "
            "Send the events one by one to find out which; the API's log has the database's reason"
        )
        raise ApiProblem("bad-events", detail, fact=": the outbox database refuses one") from None


def _answer(result: append.Receipt | QueueFull, parsed: Parsed) -> Receipt:
    if isinstance(result, QueueFull):
        raise queue_problem(result)
    g.receipt = result  # for the wake-up after the request
    return _receipt(result, parsed)


def queue_problem(full: QueueFull) -> ApiProblem:
    """Return the problem of events that were not recorded, by what the sender can do: wait, or send fewer at once."""
    if full.too_small:
        names = [_arn(one.target) for one in full.too_small if may_see(one.target)]
        tightest = min(full.too_small, key=lambda one: one.limit)
        detail = (
            f"{tightest.events} of these events are for {', '.join(names) or 'a target'}, which takes at most "
            f"{tightest.limit} that are not delivered yet (queue_limit) and is set to reject (queue_full=reject): it "
            "never has room for all of them; send fewer events in a request, or raise queue_limit; nothing was recorded"
        )
        members = {"targets": names, "limit": tightest.limit, "events": tightest.events}
        return ApiProblem("too-large", detail, members, fact=f": they exceed the queue_limit of {tightest.target}")
    names = [_arn(target) for target in full.targets if may_see(target)]
    named = ", ".join(names) or "a target"
    detail = f"the queue of {named} is full and set to reject (queue_full=reject); nothing was recorded"
    fact = ": " + ", ".join(str(target) for target in full.targets[:_MAX_NAMED])
    return ApiProblem("queue-full", detail, {"targets": names}, fact=fact)


def _receipt(receipt: append.Receipt, parsed: Parsed) -> Receipt:
    return Receipt(
        recorded=receipt.recorded,
        repeated=receipt.repeated,
        ignored=parsed.ignored,
        matched={_arn(target): count for target, count in receipt.matched.items() if may_see(target)},
        discarded={_arn(target): count for target, count in receipt.discarded.items() if may_see(target)},
        refused=_refused(parsed),
        more_refused=parsed.more_refused or UNSET,
    )


def _refused(parsed: Parsed) -> list[RefusedRecord] | UnsetType:
    listed = [RefusedRecord(index=one.index, field=one.path, problem=one.problem) for one in parsed.refused]
    return listed or UNSET


def _spooled(spool: Spool, parsed: Parsed) -> Receipt:
    if services().largest_event is None and any(is_larger(event, _ASSUMED_EVENT) for event in parsed.events):
        raise ApiProblem(
            "database-unavailable", "its limit for the size of an event is not known yet; send the request again later"
        )
    try:
        with appending("spool", parsed.events) as traced:
            spool.append(traced)
    except OSError as error:
        raise _spool_problem(error) from None
    return Receipt(
        spooled=len(parsed.events), ignored=parsed.ignored, refused=_refused(parsed),
        more_refused=parsed.more_refused or UNSET,
    )  # fmt: skip


def _spool_problem(error: OSError) -> ApiProblem:
    if number := _repetitions.take(str(error)):
        log.error("the spool folder cannot be used: %s", error, extra={"requests": number})
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ApiProblem("spool-full" if full else "spool-unavailable", "nothing was recorded; send it again later")


def _agreed(handshake: SnsConfirmation | EventGridValidation) -> Receipt | Response:
    """Agree with Event Grid; of SNS let an operator: the service must not call an address that a request contains."""
    if isinstance(handshake, EventGridValidation):
        return json_response({"validationResponse": handshake.code})
    log.warning(
        "SNS asks to confirm that topic %.300r may send events here; to confirm, open this address once: %.2000r",
        handshake.topic_arn,
        handshake.subscribe_url,
    )
    return Receipt(confirmation="open the address in the API's log to confirm", topic=handshake.topic_arn)


def _arn(target: TargetId) -> str:
    return target.arn(services().settings.region)


def install_tracing(app: Flask, tracing: Tracing) -> None:
    """Record a span for each request that posts events."""
    app.before_request(partial(_begin_span, tracing))
    app.after_request(_answered_span)
    app.teardown_request(_end_span)


@contextmanager
def appending(operation: str, events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Provide the events as they are to be stored, within a span of the operation if the request has one."""
    intake: Span | None = g.get("intake")
    tracing = telemetry.tracing()
    if intake is None or tracing is None:
        yield events
        return
    with append_span(tracing, operation, events, intake) as span:
        yield in_span(span, events, intake.trace)


def _begin_span(tracing: Tracing) -> None:
    if request.endpoint != _INTAKE:
        return
    headers = request.headers
    span = tracing.start(
        "POST /v1/events",
        "server",
        parent=trace_of(headers.get("traceparent"), headers.get("tracestate")),
        attributes={
            "http.request.method": "POST",
            "http.route": "/v1/events",
            "url.path": request.path,
            "url.scheme": request.scheme,
        },
    )
    g.intake = span.__enter__()  # until `_end_span`


def _answered_span(response: Response) -> Response:
    span: Span | None = g.get("intake")
    if span is not None:
        span.set("http.response.status_code", response.status_code)
        if (refusal := refusal_of(request.environ)) is not None:
            span.set("bucketwire.refused.reason", refusal.reason)
            span.set("bucketwire.refused.actor", refusal.actor)
        if response.status_code >= 500:
            span.fail(str(response.status_code))
    return response


def _end_span(error: BaseException | None) -> None:
    span: Span | None = g.pop("intake", None)
    if span is not None:
        span.__exit__(None if error is None else type(error), error, None)
