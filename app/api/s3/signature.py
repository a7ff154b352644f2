"""AWS Signature Version 4 of a request that was received: in its headers, or in its query.

The arithmetic (canonical request, string to sign, signature) is botocore's, which every change of S3 signing reaches
first and which boto3 signs with; here it is decided only what was signed, whose it is, and whether it holds. It has no
verifying side, so the request as it came is laid out for its signer, and the two signatures are compared.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
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


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came: the path still encoded, the query decoded, headers by lower-case name."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]

    def parameter(self, name: str) -> str | None:
        """The first value of a query parameter."""
        return next((value for key, value in self.query if key == name), None)


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a request says of its signature."""

    access_key: str
    day: str
    region: str
    signed: tuple[str, ...]
    signature: str
    moment: datetime
    content: str  # what the payload's place in the canonical request holds
    query: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Seal:
    """A signature that holds: whose it is, what it says of the payload, and how later chunks are signed."""

    key: S3Key
    signature: str
    content: str
    _auth: Any
    _context: Any

    def of_chunk(self, before: str, chunk: bytes) -> str:
        """The signature of a chunk that follows the one signed `before`."""
        stamp, scope = self._context.context["timestamp"], self._auth.credential_scope(self._context)
        text = [f"{ALGORITHM}-PAYLOAD", stamp, scope, before, EMPTY, hashlib.sha256(chunk).hexdigest()]
        signed: str = self._auth.signature("\n".join(text), self._context)
        return signed


class _Auth(S3SigV4Auth):  # type: ignore[misc]  # botocore ships no types
    """botocore's signer, told which headers were signed instead of choosing them."""

    def headers_to_sign(self, request: Any) -> Any:
        return request.context["signed"]


class _GoAuth(_Auth):
    """As `mc` signs: of parameters with the same name it keeps the order, where AWS sorts them by their values."""

    def canonical_query_string(self, request: Any) -> str:
        pairs = [(quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in request.params]
        return "&".join(f"{name}={value}" for name, value in sorted(pairs, key=lambda pair: pair[0]))


def verify(received: Received, keys: Mapping[str, S3Key], *, region: str, now: datetime) -> Seal:
    """Whose request it is. Raises `S3Error` with MinIO's codes: no signature, unknown key, wrong, too old or too new.

    With a `region` the request must be signed for it, but for the question where a bucket is.
    """
    claim = _claim(received, now)
    key = keys.get(claim.access_key)
    if key is None:
        raise S3Error("InvalidAccessKeyId")
    asks_where = received.parameter("location") is not None
    if region and claim.region != region and not (asks_where and claim.region == "us-east-1"):
        said = f"The authorization header is malformed; the region is wrong; expecting '{region}'."
        raise S3Error("AuthorizationHeaderMalformed", said, Region=region)
    request = _laid_out(received, claim)
    for signer in (_Auth, _GoAuth):
        auth = signer(Credentials(key.access_key, key.secret_key), "s3", claim.region)
        expected = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
        if hmac.compare_digest(expected, claim.signature):
            return Seal(key, claim.signature, claim.content, auth, request)
    raise S3Error("SignatureDoesNotMatch")


def _laid_out(received: Received, claim: _Claim) -> Any:
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


def _claim(received: Received, now: datetime) -> _Claim:
    if "x-amz-security-token" in received.headers or received.parameter("X-Amz-Security-Token"):
        raise S3Error("InvalidTokenId")
    authorization = received.headers.get("authorization", "")
    if authorization.startswith(ALGORITHM):
        return _in_headers(received, authorization, now)
    if received.parameter("X-Amz-Algorithm") == ALGORITHM:
        return _in_query(received, now)
    raise S3Error("AccessDenied", "Access Denied. Sign the request with AWS Signature Version 4.")


def _in_headers(received: Received, authorization: str, now: datetime) -> _Claim:
    malformed = "AuthorizationHeaderMalformed"
    fields = dict(_FIELDS.findall(authorization))
    if fields.keys() != {"Credential", "SignedHeaders", "Signature"}:
        raise S3Error(malformed)
    moment = _moment(received.headers)
    if abs(now - moment) > _SKEW:
        raise S3Error("RequestTimeTooSkewed")
    content = received.headers.get("x-amz-content-sha256", EMPTY)
    return _made(received, fields, moment, content, received.query, malformed)


def _in_query(received: Received, now: datetime) -> _Claim:
    bad = "AuthorizationQueryParametersError"
    named = ("Credential", "SignedHeaders", "Signature", "Date", "Expires")
    fields = {name: received.parameter(f"X-Amz-{name}") or "" for name in named}
    if not all(fields.values()):
        raise S3Error(bad, "X-Amz-Credential, -SignedHeaders, -Signature, -Date and -Expires are all needed.")
    if not re.fullmatch(r"[0-9]{1,6}", fields["Expires"]) or int(fields["Expires"]) > _WEEK:
        raise S3Error(bad, "X-Amz-Expires must be a whole number of seconds, at most those of a week.")
    moment = _parsed(fields["Date"])
    if moment is None:
        raise S3Error(bad, "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")
    if moment - now > _SKEW:
        raise S3Error("AccessDenied", "Request is not valid yet")
    if now - moment > timedelta(seconds=int(fields["Expires"])):
        raise S3Error("AccessDenied", "Request has expired")
    content = received.parameter("X-Amz-Content-Sha256") or received.headers.get("x-amz-content-sha256", UNSIGNED)
    query = tuple((name, value) for name, value in received.query if name != "X-Amz-Signature")
    return _made(received, fields, moment, content, query, bad)


def _made(
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
        raise S3Error(malformed, "The credential's date is not that of the request.")
    signed = tuple(fields["SignedHeaders"].lower().split(";"))
    if "host" not in signed or not set(signed) <= received.headers.keys():
        raise S3Error("AccessDenied", "Host must be signed, and every signed header must be there.")
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


def _moment(headers: Mapping[str, str]) -> datetime:
    stamp = headers.get("x-amz-date") or headers.get("date") or ""
    moment = _parsed(stamp)
    if moment is None:
        try:
            moment = parsedate_to_datetime(stamp)
            # "-0000" means UTC and gives a time without a zone, which `astimezone` would read as this machine's own.
            moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            said = "AWS authentication requires a valid Date or x-amz-date header"
            raise S3Error("AccessDenied", said) from None
    return moment


def _parsed(stamp: str) -> datetime | None:
    try:
        return datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def known_keys(keys: Iterable[S3Key]) -> dict[str, S3Key]:
    """Keys by their access keys."""
    return {key.access_key: key for key in keys}
