"""Verify the AWS Signature Version 4 of a received request, in its headers or in its query, and read its signed body.

The computation (canonical request, string to sign, signature) is botocore's, which boto3 signs with and which follows
every change of S3 signing first. This module decides only what was signed, by whom, and whether the signature is valid.
botocore cannot verify, so the received request is rebuilt for its signer, and the two signatures are compared.

A body is read as a whole with a digest, or in signed or unsigned chunks.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import IO, Any
from urllib.parse import quote, unquote_to_bytes

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials

from app.api.s3.errors import S3Error
from app.config.settings import S3Key

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
EMPTY = hashlib.sha256(b"").hexdigest()
_SKEW = timedelta(minutes=15)
_WEEK = 7 * 24 * 3600
_CREDENTIAL = re.compile(r"(?P<key>.+)/(?P<day>[0-9]{8})/(?P<region>[^/]*)/(?P<service>[^/]+)/aws4_request")
_FIELDS = re.compile(r"(Credential|SignedHeaders|Signature)=([^,\s]+)")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
MAX_SIGNED_BODY_BYTES = 1 << 20  # bytes of a notification document; MinIO's own limit for documents
_STREAMING = "STREAMING-"
_SIGNED_CHUNKS = ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")
_UNSIGNED_CHUNKS = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})(?:;chunk-signature=([0-9a-f]{64}))?")


@dataclass(frozen=True, slots=True)
class Received:
    """A received request: the path still encoded, the query decoded, headers by lower-case name."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]

    def parameter(self, name: str) -> str | None:
        """Return the first value of a query parameter."""
        return next((value for key, value in self.query if key == name), None)


@dataclass(frozen=True, slots=True)
class _Claim:
    """The unverified signature fields of a request."""

    access_key: str
    day: str
    region: str
    signed: tuple[str, ...]
    signature: str
    moment: datetime
    content: str  # the payload hash, or its placeholder, in the canonical request
    query: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Seal:
    """A verified signature: its key, the signed payload hash, and the signer for later chunks."""

    key: S3Key
    signature: str
    content: str
    _auth: Any
    _context: Any

    def sign_chunk(self, previous: str, chunk: bytes) -> str:
        """Return the signature of a chunk; `previous` is the signature of the chunk before it."""
        stamp, scope = self._context.context["timestamp"], self._auth.credential_scope(self._context)
        text = [f"{ALGORITHM}-PAYLOAD", stamp, scope, previous, EMPTY, hashlib.sha256(chunk).hexdigest()]
        signature: str = self._auth.signature("\n".join(text), self._context)
        return signature


class _Auth(S3SigV4Auth):  # type: ignore[misc]  # botocore ships no types
    """botocore's signer, with the headers that the sender signed instead of its own choice."""

    def headers_to_sign(self, request: Any) -> Any:
        return request.context["signed"]


class _GoAuth(_Auth):
    """The signer of `mc`: it keeps the order of parameters with the same name, while AWS sorts them by value."""

    def canonical_query_string(self, request: Any) -> str:
        pairs = [(quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in request.params]
        return "&".join(f"{name}={value}" for name, value in sorted(pairs, key=lambda pair: pair[0]))


def verify(received: Received, keys: Mapping[str, S3Key], *, region: str, now: datetime) -> Seal:
    """Verify a request's signature. Raises `S3Error` with MinIO's codes if it is missing, wrong, expired or too new.

    With a `region` the request must be signed for it, except for the request of a bucket's location.
    """
    claim = _parse_claim(received, now)
    key = keys.get(claim.access_key)
    if key is None:
        raise S3Error("InvalidAccessKeyId")
    asks_location = received.parameter("location") is not None
    if region and claim.region != region and not (asks_location and claim.region == "us-east-1"):
        message = f"The authorization header is malformed; the region is wrong; expecting '{region}'."
        raise S3Error("AuthorizationHeaderMalformed", message, reason="wrong-region", actor=key.actor, Region=region)
    request = _rebuild_request(received, claim)
    for signer in (_Auth, _GoAuth):
        auth = signer(Credentials(key.access_key, key.secret_key), "s3", claim.region)
        expected = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
        if hmac.compare_digest(expected, claim.signature):
            return Seal(key, claim.signature, claim.content, auth, request)
    raise S3Error("SignatureDoesNotMatch", actor=key.actor)


def _rebuild_request(received: Received, claim: _Claim) -> Any:
    path = quote(unquote_to_bytes(received.path), safe="/-_.~")
    request = AWSRequest(
        received.method,
        f"http://host{path}",
        headers={"X-Amz-Content-SHA256": claim.content},
        params=list(claim.query),
    )
    signed = HTTPHeaders()
    for name in claim.signed:
        signed[name] = received.headers[name]
    request.context.update(timestamp=claim.moment.strftime("%Y%m%dT%H%M%SZ"), signed=signed)
    return request


def _parse_claim(received: Received, now: datetime) -> _Claim:
    if "x-amz-security-token" in received.headers or received.parameter("X-Amz-Security-Token"):
        raise S3Error("InvalidTokenId")
    authorization = received.headers.get("authorization", "")
    if authorization.startswith(ALGORITHM):
        return _parse_headers(received, authorization, now)
    if received.parameter("X-Amz-Algorithm") == ALGORITHM:
        return _parse_query(received, now)
    raise S3Error("AccessDenied", "Access Denied. Sign the request with AWS Signature Version 4.")


def _parse_headers(received: Received, authorization: str, now: datetime) -> _Claim:
    malformed = "AuthorizationHeaderMalformed"
    fields = dict(_FIELDS.findall(authorization))
    if fields.keys() != {"Credential", "SignedHeaders", "Signature"}:
        raise S3Error(malformed)
    moment = _request_time(received.headers)
    if abs(now - moment) > _SKEW:
        raise S3Error("RequestTimeTooSkewed")
    content = received.headers.get("x-amz-content-sha256", EMPTY)
    return _build_claim(received, fields, moment, content, received.query, malformed)


def _parse_query(received: Received, now: datetime) -> _Claim:
    bad = "AuthorizationQueryParametersError"
    names = ("Credential", "SignedHeaders", "Signature", "Date", "Expires")
    fields = {name: received.parameter(f"X-Amz-{name}") or "" for name in names}
    if not all(fields.values()):
        raise S3Error(bad, "X-Amz-Credential, -SignedHeaders, -Signature, -Date and -Expires are required.")
    if not re.fullmatch(r"[0-9]{1,6}", fields["Expires"]) or int(fields["Expires"]) > _WEEK:
        raise S3Error(bad, "X-Amz-Expires must be a whole number of seconds, at most a week.")
    moment = _parse_stamp(fields["Date"])
    if moment is None:
        raise S3Error(bad, "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")
    if moment - now > _SKEW:
        raise S3Error("AccessDenied", "Request is not valid yet")
    if now - moment > timedelta(seconds=int(fields["Expires"])):
        raise S3Error("AccessDenied", "Request has expired")
    content = received.parameter("X-Amz-Content-Sha256") or received.headers.get("x-amz-content-sha256", UNSIGNED)
    query = tuple((name, value) for name, value in received.query if name != "X-Amz-Signature")
    return _build_claim(received, fields, moment, content, query, bad)


def _build_claim(
    received: Received,
    fields: Mapping[str, str],
    moment: datetime,
    content: str,
    query: tuple[tuple[str, str], ...],
    malformed: str,
) -> _Claim:
    credential = _CREDENTIAL.fullmatch(fields["Credential"])
    if credential is None or credential["service"] != "s3" or not _SIGNATURE.fullmatch(fields["Signature"]):
        raise S3Error(malformed)
    if credential["day"] != moment.strftime("%Y%m%d"):
        raise S3Error(malformed, "The credential's date differs from the request's date.")
    signed = tuple(fields["SignedHeaders"].lower().split(";"))
    if "host" not in signed or not set(signed) <= received.headers.keys():
        raise S3Error("AccessDenied", "Host must be signed, and every signed header must be present.")
    return _Claim(
        credential["key"],
        credential["day"],
        credential["region"],
        signed,
        fields["Signature"],
        moment,
        content,
        query,
    )


def _request_time(headers: Mapping[str, str]) -> datetime:
    stamp = headers.get("x-amz-date") or headers.get("date") or ""
    moment = _parse_stamp(stamp)
    if moment is None:
        try:
            moment = parsedate_to_datetime(stamp)
            # "-0000" means UTC and gives a time without a zone, which `astimezone` would treat as local time.
            moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            message = "AWS authentication requires a valid Date or x-amz-date header"
            raise S3Error("AccessDenied", message) from None
    return moment


def _parse_stamp(stamp: str) -> datetime | None:
    try:
        return datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def known_keys(keys: Iterable[S3Key]) -> dict[str, S3Key]:
    """Index keys by their access keys."""
    return {key.access_key: key for key in keys}


def read_signed_body(stream: IO[bytes], length: int, seal: Seal) -> bytes:
    """Read and decode the body. Raises `S3Error` if it does not match the signature.

    Trailing headers are ignored: if chunks are signed, a signature covers every byte of the content.
    """
    if length > MAX_SIGNED_BODY_BYTES:
        raise S3Error("EntityTooLarge")
    body = stream.read(length)
    if len(body) < length:
        raise S3Error("IncompleteBody")
    if seal.content in _SIGNED_CHUNKS:
        return _join_chunks(body, seal)
    if seal.content == _UNSIGNED_CHUNKS:
        return _join_chunks(body, None)
    if seal.content.startswith(_STREAMING):
        raise S3Error("NotImplemented", f"{seal.content[:60]} is not supported.")
    if seal.content != UNSIGNED and not hmac.compare_digest(
        hashlib.sha256(body).hexdigest().encode(), seal.content.encode()
    ):
        raise S3Error("XAmzContentSHA256Mismatch")
    return body


def _join_chunks(body: bytes, seal: Seal | None) -> bytes:
    content, position = bytearray(), 0
    expected = seal.signature if seal else ""
    while True:
        end = body.find(b"\r\n", position)
        head = _CHUNK.fullmatch(body[position:end]) if end >= 0 else None
        if head is None:
            raise S3Error("IncompleteBody", "The body is not valid aws-chunked encoding.")
        start, size = end + 2, int(head[1], 16)
        chunk = body[start : start + size]
        if len(chunk) < size:
            raise S3Error("IncompleteBody")
        if seal:
            expected = seal.sign_chunk(expected, chunk)
            if not hmac.compare_digest(expected, (head[2] or b"").decode()):
                raise S3Error("SignatureDoesNotMatch")
        if not size:
            return bytes(content)
        content += chunk
        position = start + size + 2
