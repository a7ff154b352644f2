"""Answer S3 requests before Flask sees them: check their signatures, run the operation or refuse it in S3's XML.

The operations are those of a bucket's rules, and what clients request before and after them. `SignedApp` is what the S3
API and MinIO's admin API share: each request is signed, and each error is one of the codes.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree.ElementTree import Element, SubElement

import sqlalchemy as sa
from werkzeug.wrappers import Request, Response

from app.api.auth import MC_METRICS, is_signed_for
from app.api.errors import ClientGone, database_unavailable
from app.api.listen.broadcaster import SocketHandedOver, Streams
from app.api.listen.stream import parse_query
from app.api.s3.errors import S3Error, error_response, request_id
from app.api.s3.signature import ALGORITHM, Received, Seal, known_keys, read_signed_body, verify
from app.api.services import Services
from app.api.wsgi_layers import PROBES, Refusal, set_refusal, set_route
from app.events.minio_json import timestamp
from app.events.model import Event
from app.events.normalize import event_of
from app.outbox import audit
from app.outbox.buckets import every_bucket, is_bucket, remove_bucket
from app.outbox.declared import UnknownTarget
from app.outbox.engine.database import DatabaseUnavailable, now_ms
from app.outbox.log.append import Log
from app.resources.declaration import format_time
from app.resources.refusal import S3_ROUTE
from app.rules.model import BadRules
from app.rules.notification_xml import (
    NAMESPACE,
    NO_TARGET,
    BadConfiguration,
    add,
    configuration,
    document,
    parse_configuration,
)

CREATED, REMOVED = "s3:BucketCreated:*", "s3:BucketRemoved:*"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MAX_BUCKET_CHARACTERS = 255  # characters of a bucket's name in an event
_ADDRESS = re.compile(r"[0-9]+(\.[0-9]+){3}")


@dataclass(frozen=True, slots=True)
class Operation:
    """One request with a valid signature."""

    parts: Services
    streams: Streams
    received: Received
    seal: Seal
    bucket: str
    number: str
    sender: str
    content_length: int | None
    stream: IO[bytes]
    chunked: bool  # whether the response may be chunked

    def body(self) -> bytes:
        """Read the request's document. Raises `S3Error` without a Content-Length (as MinIO: §2.3)."""
        if not self.content_length:
            raise S3Error("MissingContentLength")
        return read_signed_body(self.stream, self.content_length, self.seal)

    def existing(self) -> str:
        """Return the bucket's name. Raises `S3Error` unless the bucket exists.

        A name that S3 does not allow is invalid, unless a frontend has reported events of such a bucket.
        """
        # A name that does not fit into its column needs no query.
        if (
            len(self.bucket) > _MAX_BUCKET_CHARACTERS
            or "\0" in self.bucket
            or not is_bucket(self.parts.database, self.bucket)
        ):
            code = "NoSuchBucket" if _is_valid(self.bucket) else "InvalidBucketName"
            raise S3Error(code, BucketName=self.bucket)
        return self.bucket


def list_buckets(call: Operation) -> Response:
    """Answer `GET /`."""
    root = Element("ListAllMyBucketsResult", xmlns=NAMESPACE)
    owner = SubElement(root, "Owner")
    add(owner, "ID", call.seal.key.name)
    add(owner, "DisplayName", call.seal.key.name)
    listed = SubElement(root, "Buckets")
    for bucket in every_bucket(call.parts.database):
        element = SubElement(listed, "Bucket")
        add(element, "Name", bucket.name)
        add(element, "CreationDate", format_time(bucket.created_at) or "1970-01-01T00:00:00.000Z")
    return _xml(root)


def head_bucket(call: Operation) -> Response:
    """Answer `HEAD /<bucket>`."""
    call.existing()
    return Response(status=200)


def location(call: Operation) -> Response:
    """Answer `GET /<bucket>?location`: the site's region, or none, which means us-east-1."""
    call.existing()
    root = Element("LocationConstraint", xmlns=NAMESPACE)
    root.text = call.parts.settings.region
    return _xml(root)


def create_bucket(call: Operation) -> Response:
    """Answer `PUT /<bucket>`: create the bucket and notify listeners."""
    if not _is_valid(call.bucket):
        raise S3Error("InvalidBucketName", BucketName=call.bucket)
    if is_bucket(call.parts.database, call.bucket):
        raise S3Error("BucketAlreadyOwnedByYou", BucketName=call.bucket)
    _record_event(call, CREATED, "bucket.create")
    return Response(status=200, headers={"Location": f"/{call.bucket}"})


def delete_bucket(call: Operation) -> Response:
    """Answer `DELETE /<bucket>`: remove the bucket and its rules; its events are kept, and a later one recreates it."""
    remove_bucket(call.parts.database, call.existing())
    _record_event(call, REMOVED)
    return Response(status=204)


def get_policy(call: Operation) -> Response:
    """Answer `GET /<bucket>?policy`: there is none, so that `mc stat` does not call the bucket public."""
    raise S3Error("NoSuchBucketPolicy", BucketName=call.existing())


def get_notification(call: Operation) -> Response:
    """Answer `GET /<bucket>?notification`."""
    rules = [stored.rule for stored in call.parts.registry.rules(call.existing())]
    return Response(configuration(rules, call.parts.settings.region), mimetype="application/xml")


def put_notification(call: Operation) -> Response:
    """Answer `PUT /<bucket>?notification`: replace the bucket's rules by the document's, all of them or none."""
    call.existing()
    body = call.body()
    registry, region = call.parts.registry, call.parts.settings.region
    existing = {stored.target for stored in registry.targets()}
    stored = [row.rule for row in registry.rules(call.bucket)]
    try:
        rules = parse_configuration(body, call.bucket, region=region, configured=existing, stored=stored)
        registry.replace_rules(call.bucket, rules)
    except BadConfiguration as error:
        raise S3Error(error.code, str(error)) from None
    except BadRules as error:
        raise S3Error("InvalidArgument", str(error)) from None
    except UnknownTarget as error:  # removed after it was checked
        raise S3Error("InvalidArgument", f"{NO_TARGET}: {error}") from None
    return Response(status=200)


def listen(call: Operation) -> Response:
    """Answer `GET /<bucket>?events=…` and `GET /?events=…`. Raises `SocketHandedOver`, which starts the stream."""
    if call.bucket:
        call.existing()
    query = parse_query(call.bucket, call.received.query)
    raise call.streams.begin(query, chunked=call.chunked, number=call.number)


Handler = Callable[[Operation], Response]

# By method and subresource; "" is the bucket itself.
BUCKET_CALLS: Mapping[tuple[str, str], Handler] = {
    ("GET", "location"): location,
    ("GET", "events"): listen,
    ("GET", "policy"): get_policy,
    ("GET", "notification"): get_notification,
    ("PUT", "notification"): put_notification,
    ("HEAD", ""): head_bucket,
    ("PUT", ""): create_bucket,
    ("DELETE", ""): delete_bucket,
}


def _is_valid(bucket: str) -> bool:
    return bool(_BUCKET.fullmatch(bucket)) and ".." not in bucket and not _ADDRESS.fullmatch(bucket)


def _record_event(call: Operation, name: str, action: str = "") -> None:
    """Record a bucket event. It is sent to no target: such events are for listeners only (as MinIO: §1.1)."""
    Log(call.parts.database).append([[bucket_event(call, name, now_ms())]], routed=False, action=action)


def bucket_event(call: Operation, name: str, now: int) -> Event:
    """Build a bucket event with the same members as MinIO's."""
    region, principal = call.parts.settings.region, {"principalId": call.seal.key.access_key}
    record = {
        "eventVersion": "2.0",
        "eventSource": "bucketwire:s3",
        "awsRegion": region,
        "eventTime": timestamp(now),
        "eventName": name,
        "userIdentity": principal,
        "requestParameters": {**principal, "region": region, "sourceIPAddress": call.sender},
        "responseElements": {"x-amz-request-id": call.number},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {"name": call.bucket, "ownerIdentity": principal, "arn": f"arn:aws:s3:::{call.bucket}"},
            "object": {"key": "", "sequencer": f"{now * 1_000_000:X}"},
        },
        "source": {"host": call.sender, "port": "", "userAgent": call.received.headers.get("user-agent", "")[:500]},
    }
    return event_of(record, now, 32)


def _xml(root: Element) -> Response:
    return Response(document(root), mimetype="application/xml")


log = logging.getLogger("bucketwire.api")
Environ = dict[str, Any]
Wsgi = Callable[[Environ, Any], Iterable[bytes]]

_MAX_PARAMETERS = 1000
_SIGNED = frozenset({"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature", "AWSAccessKeyId"})
_SUBRESOURCES = ("notification", "location", "events")
_SIGNED_SUBRESOURCES = (*_SUBRESOURCES, "policy")
_CONSOLE = "/console"
_IGNORED = frozenset({"x-id"})  # SDKs add it to name their own call
# What MinIO itself keeps below its reserved bucket: signed like S3 requests, and answered in JSON.
_ADMIN = ("/minio/admin/", "/minio/kms/")


class SignedApp:
    """A WSGI application for signed requests; a subclass answers them and writes errors in its own format.

    `route` is what requests are counted as for which `answer` has named no other one.
    """

    route: ClassVar[str]

    def __init__(self, parts: Services) -> None:
        self._parts = parts
        self._keys = known_keys(parts.settings.every_s3_key)

    def answer(self, request: Request, received: Received, number: str) -> Response:
        """Return the response to a request, whose signature is not verified yet. Raises `S3Error`."""
        raise NotImplementedError

    def refuse(self, error: S3Error, request: Request, number: str) -> Response:
        """Return the response for an error."""
        raise NotImplementedError

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        """Answer a request, also one that fails."""
        request, number = Request(environ), request_id()
        set_route(environ, self.route)
        try:
            response = self.answer(request, request_from(environ), number)
        except SocketHandedOver:
            raise
        except S3Error as error:
            response = self._refuse(error, request, number)
        except ClientGone:
            response = self._refuse(S3Error("IncompleteBody", reason="client-gone"), request, number)
        except (*DatabaseUnavailable, sa.exc.ProgrammingError) as error:
            database_unavailable(error)
            response = self._refuse(S3Error("ServiceUnavailable"), request, number)
            response.headers["Retry-After"] = "5"
        except Exception:
            log.exception("unexpected error %s", number)
            response = self._refuse(S3Error("InternalError"), request, number)
        response.headers["x-amz-request-id"] = number
        response.headers["x-amz-bucket-region"] = self._parts.settings.region or "us-east-1"
        return response(environ, start_response)

    def _refuse(self, error: S3Error, request: Request, number: str) -> Response:
        if error.reason:
            set_refusal(request.environ, Refusal(error.reason, error.actor, error.fact))
        return self.refuse(error, request, number)

    def authenticate(self, received: Received, *, scope: str, region: str) -> Seal:
        """Verify the signature, for `region` if there is one, and the key's scope. Raises `S3Error`."""
        if not self._keys:
            raise S3Error(
                "AccessDenied", "No S3 key is configured: set BUCKETWIRE_ACCESS_KEY and BUCKETWIRE_SECRET_KEY."
            )
        seal = verify(received, self._keys, region=region, now=datetime.now(UTC))
        if scope not in seal.key.scopes and "admin" not in seal.key.scopes:
            message = f"Access Denied. The key {seal.key.name} lacks the scope {scope}."
            raise S3Error("AccessDenied", message, reason="scope", actor=seal.key.actor, fact=scope)
        return seal


def actor_of(seal: Seal, request: Request, via: str) -> audit.Actor:
    """Return who acts by a signed request, for the audit log; `via` must not contain the query, which may be signed."""
    return audit.Actor(seal.key.actor, request.remote_addr or "", via)


def request_from(environ: Environ) -> Received:
    """Return the request as it was received. Raises `S3Error` for one with too many parameters, or no valid path."""
    try:
        raw = urlsplit(environ.get("RAW_URI") or environ["PATH_INFO"])
    except ValueError:
        raise S3Error("InvalidArgument", "The path is not valid.") from None
    headers = {
        name[5:].replace("_", "-").lower(): _text(value) for name, value in environ.items() if name.startswith("HTTP_")
    }
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.replace("_", "-").lower()] = _text(environ[name])
    query = tuple(parse_query_pairs(environ.get("QUERY_STRING", ""), most=_MAX_PARAMETERS))
    return Received(environ["REQUEST_METHOD"], raw.path, query, headers)


def parse_query_pairs(query: str, *, most: int | None) -> list[tuple[str, str]]:
    """Return the decoded parameters of a query. Raises `S3Error` for more than `most`."""
    try:
        return parse_qsl(query, keep_blank_values=True, errors="replace", max_num_fields=most)
    except ValueError:
        raise S3Error("InvalidArgument", f"A request may have at most {most} parameters.") from None


def _text(value: str) -> str:
    """Decode WSGI's latin-1 text as the UTF-8 that was sent."""
    return value.encode("latin-1", "replace").decode("utf-8", "replace")


class Front:
    """Three WSGI applications at one address: for S3 requests, for MinIO's admin API, and for all others."""

    def __init__(self, s3: Wsgi, admin: Wsgi, others: Wsgi) -> None:
        self._s3 = s3
        self._admin = admin
        self._others = others

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        """Pass the request to the application that it is for."""
        asked = environ.get("PATH_INFO", "")
        ours = PROBES.get(asked) or MC_METRICS.get(asked)
        if ours:
            environ = environ | {"PATH_INFO": ours}
        return self._application(environ)(environ, start_response)

    def _application(self, environ: Environ) -> Wsgi:
        if environ.get("PATH_INFO", "").startswith(_ADMIN):
            return self._admin
        return self._s3 if is_s3_request(environ) else self._others


def is_s3_request(environ: Environ) -> bool:
    """Return whether this is an S3 request: signed like one, or unsigned for a subresource that only S3 has.

    An unsigned one for `/console` is for the console; a signed one is for the bucket of that name. One that is signed
    for SNS publishes a message.
    """
    if is_signed_for("sns", environ):
        return False
    if environ.get("HTTP_AUTHORIZATION", "").startswith((ALGORITHM, "AWS ")):
        return True
    query, path = environ.get("QUERY_STRING", ""), environ.get("PATH_INFO", "")
    if not query or path.startswith("/v1/"):
        return False
    names = {name for name, _ in parse_query_pairs(query[:8192], most=None)}
    if names & _SIGNED:
        return True
    return not (path == _CONSOLE or path.startswith(f"{_CONSOLE}/")) and bool(names.intersection(_SUBRESOURCES))


class S3App(SignedApp):
    """The S3 API of one process, as a WSGI application."""

    route = S3_ROUTE

    def __init__(self, parts: Services, streams: Streams) -> None:
        super().__init__(parts)
        self._listening = streams

    def answer(self, request: Request, received: Received, number: str) -> Response:
        """Verify the signature and run the operation."""
        scope = "read" if received.method in ("GET", "HEAD") else "admin"
        seal = self.authenticate(received, scope=scope, region=self._parts.settings.region)
        bucket, _, key = unquote(received.path).removeprefix("/").partition("/")
        call = Operation(
            parts=self._parts,
            streams=self._listening,
            received=received,
            seal=seal,
            bucket=bucket,
            number=number,
            sender=request.remote_addr or "",
            content_length=request.content_length,
            stream=request.stream,
            chunked=request.environ.get("SERVER_PROTOCOL") != "HTTP/1.0",
        )
        subresource, handler = _find_handler(received, bucket, key)
        via = f"{received.method} /<bucket>" + (f"?{subresource}" if subresource else "")
        set_route(request.environ, via)
        with audit.acting(actor_of(seal, request, via)):
            return handler(call)

    def refuse(self, error: S3Error, request: Request, number: str) -> Response:
        """Write the error in S3's XML."""
        return error_response(error, method=request.method, path=request.path, number=number)


def _find_handler(received: Received, bucket: str, key: str) -> tuple[str, Handler]:
    """Return the subresource, "" for the bucket itself, and what answers the request. Raises `S3Error`."""
    if key:
        raise S3Error("NotImplemented", "Bucketwire stores no objects: send this request to the storage.")
    if not bucket:
        if received.method != "GET":
            raise S3Error("MethodNotAllowed")
        return ("", list_buckets) if received.parameter("events") is None else ("events", listen)
    names = {name for name, _ in received.query if name not in _IGNORED and not name.lower().startswith("x-amz-")}
    query = next((name for name in _SIGNED_SUBRESOURCES if name in names), "")
    handler = BUCKET_CALLS.get((received.method, query))
    if handler is None or (names and not query):
        raise S3Error("NotImplemented", "Bucketwire supports only a bucket's notification rules and events.")
    return query, handler
