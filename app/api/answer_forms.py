"""Answer who posts events in the form of its own protocol: what form a request has is decided here and nowhere else.

The headers decide, before the request is authenticated, because a refusal has the sender's form too; of a body that is
declared as a form, its content then decides whether it is a call of SNS.
"""

import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement

from flask import Request, Response, g, request

from app.api.auth import is_signed_for
from app.api.description import OtherAnswer, json_response
from app.api.errors import ApiProblem
from app.events.frontends.clouds import B2, B2_SIGNATURE_HEADER, TIGRIS
from app.events.frontends.envelopes import begins_as_form, is_sns_call
from app.events.minio_json import Encoded
from app.events.parsing import Parsed
from app.outbox.engine.database import now_ms
from app.resources.event import Receipt
from app.rules.notification_xml import add, document

log = logging.getLogger("bucketwire.api")

_CLOUD_EVENTS = frozenset(("application/cloudevents+json", "application/cloudevents-batch+json"))
_SNS = "http://sns.amazonaws.com/doc/2010-03-31/"
_SNS_CODES = {401: "InvalidClientTokenId", 403: "AuthorizationError", 404: "NotFound", 500: "InternalError"}
_BEFORE_THE_BODY = frozenset((401, 403, 404, 405))  # nobody has read it, and nobody will
_BEGINNING = 64  # bytes, more than the longest name of a field that comes first
_OF_THE_PATH = frozenset(("not-found", "wrong-method"))
_ELSEWHERE = "messages are published to /v1/events: let the client's endpoint URL end with it"
_FIREHOSE_REQUEST = "HTTP_X_AMZ_FIREHOSE_REQUEST_ID"
_ONLY_200 = frozenset((B2.name, TIGRIS.name))  # to these a 202 is a failure, which they repeat

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}


def _object(**members: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


_DELIVERY = {"requestId": _TEXT, "timestamp": _NUMBER}
_XML = {"text/xml": {"schema": _TEXT}}
_RECEIPT, _PROBLEM = ({"$ref": f"#/components/schemas/{name}"} for name in ("Receipt", "Problem"))
_ACCEPTED = {"anyOf": [_RECEIPT, _object(**_DELIVERY), _object(validationResponse=_TEXT)]}
DESCRIBED: Mapping[int | str, OtherAnswer] = {  # what the route answers besides a receipt with 202
    200: (
        "the same to a client of SNS, in XML, to Firehose, Backblaze B2 and Tigris; and Event Grid's handshake",
        {"application/json": {"schema": _ACCEPTED}, **_XML},
    ),
    "default": (
        "a problem (RFC 9457), but to a client of SNS an error in XML, and to Firehose one with `errorMessage`",
        {
            "application/problem+json": {"schema": _PROBLEM},
            "application/json": {"schema": _object(**_DELIVERY, errorMessage=_TEXT)},
            **_XML,
        },
    ),
}


class AnswerForm(NamedTuple):
    """How a protocol says that all events are recorded, and that none is.

    `accept` gets what was recorded and what it was read from; a refusal keeps the problem's headers, and its status
    unless the protocol has none like it.
    """

    accept: Callable[[Receipt, Parsed], Receipt | Response]
    refuse: Callable[[ApiProblem], Response]


def settle(body: Encoded) -> None:
    """Have the body decide the form of the request, where the headers alone do not."""
    if is_sns_call(body):
        g.answer_form = _OF_SNS
    elif _form() is _OF_SNS:  # curl declares a form unless it is told otherwise
        g.answer_form = _OF_OTHERS


def accept(receipt: Receipt, parsed: Parsed) -> Receipt | Response:
    """Return the answer to a request whose events are recorded."""
    form = _form()
    if form is not _OF_OTHERS and parsed.refused:
        first, others = parsed.refused[0], len(parsed.refused) + parsed.more_refused - 1
        log.warning("left out of a request with partial=true: %.500s And %s others", first.problem, others)
    return form.accept(receipt, parsed)


def refuse(problem: ApiProblem) -> Response:
    """Return the answer to a request that is refused, or could not be served."""
    if "answer_form" not in g and problem.http_status in _BEFORE_THE_BODY and _form() is _OF_SNS:
        with suppress(Exception):  # the body is of no use any more, whatever is wrong with it
            if not begins_as_form(request.stream.read(_BEGINNING)):
                g.answer_form = _OF_OTHERS
    return _form().refuse(problem)


def _form() -> AnswerForm:
    form: AnswerForm | None = g.get("answer_form")
    if form is None:
        g.answer_form = form = _declared_form()
    return form


def _declared_form() -> AnswerForm:
    """Return the form that the headers of a request to post events declare, also of one with another path."""
    asked: Request = request._get_current_object()  # type: ignore[attr-defined]  # each use of the proxy takes time
    environ = asked.environ
    if asked.method != "POST" or (asked.endpoint not in ("events.record", "events.root", None)):
        return _OF_OTHERS
    if _FIREHOSE_REQUEST in environ:
        return _OF_FIREHOSE
    content_type = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if content_type == "application/x-www-form-urlencoded" or is_signed_for("sns", environ):
        return _OF_SNS
    if content_type in _CLOUD_EVENTS or "HTTP_CE_SPECVERSION" in environ:
        return _OF_CLOUD_EVENTS
    return _OF_OTHERS


def _accept_cloud_event(_receipt: Receipt, _parsed: Parsed) -> Response:
    """Answer without content and type: to Knative any other body is a reply, which has to be a CloudEvent."""
    response = Response(status=202)
    del response.headers["Content-Type"]
    return response


def _accept_publish(_receipt: Receipt, parsed: Parsed) -> Response:
    if parsed.batch is None:
        root, result = _sns_answer("Publish")
        add(result, "MessageId", str(uuid.uuid4()))
        return _sns_response(root, 200)
    root, result = _sns_answer("PublishBatch")
    SubElement(result, "Failed")
    successful = SubElement(result, "Successful")
    for entry in parsed.batch:
        member = SubElement(successful, "member")
        add(member, "Id", entry)
        add(member, "MessageId", str(uuid.uuid4()))
    return _sns_response(root, 200)


def _sns_answer(action: str) -> tuple[Element, Element]:
    root = Element(f"{action}Response", xmlns=_SNS)
    return root, SubElement(root, f"{action}Result")


def _refuse_publish(problem: ApiProblem) -> Response:
    status = 503 if problem.http_status == 507 else problem.http_status  # SDKs of AWS try only the former again
    root = Element("ErrorResponse", xmlns=_SNS)
    error = SubElement(root, "Error")
    add(error, "Type", "Sender" if status < 500 else "Receiver")
    add(error, "Code", _SNS_CODES.get(status, "InvalidParameter" if status < 500 else "ServiceUnavailable"))
    add(error, "Message", _ELSEWHERE if problem.kind in _OF_THE_PATH else problem.detail)
    response = _sns_response(root, status)
    response.headers.update(problem.http_headers)
    return response


def _sns_response(root: Element, status: int) -> Response:
    number = str(uuid.uuid4())
    add(root if root.tag == "ErrorResponse" else SubElement(root, "ResponseMetadata"), "RequestId", number)
    return Response(document(root), status, {"x-amzn-RequestId": number}, mimetype="text/xml")


def _accept_delivery(_receipt: Receipt, _parsed: Parsed) -> Response:
    return json_response(_delivery())


def _refuse_delivery(problem: ApiProblem) -> Response:
    response = json_response(_delivery() | {"errorMessage": problem.detail}, problem.http_status)
    response.headers.update(problem.http_headers)
    return response


def _delivery() -> dict[str, str | int]:
    return {"requestId": request.environ[_FIREHOSE_REQUEST], "timestamp": now_ms()}


def _accept_events(receipt: Receipt, parsed: Parsed) -> Receipt | Response:
    if not parsed.senders:  # as a test of B2
        return json_response(receipt) if B2_SIGNATURE_HEADER in request.headers else receipt
    return receipt if _ONLY_200.isdisjoint(parsed.senders) else json_response(receipt)


_OF_OTHERS = AnswerForm(_accept_events, ApiProblem.response)
_OF_CLOUD_EVENTS = AnswerForm(_accept_cloud_event, ApiProblem.response)
_OF_SNS = AnswerForm(_accept_publish, _refuse_publish)
_OF_FIREHOSE = AnswerForm(_accept_delivery, _refuse_delivery)
