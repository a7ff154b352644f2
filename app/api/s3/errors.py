"""The errors of the S3 API and of MinIO's admin API, with the codes and statuses of MinIO; S3's are written as XML."""

import secrets
from collections.abc import Mapping
from xml.etree.ElementTree import Element

from werkzeug.wrappers import Response

from app.rules.notification_xml import add, document

# The status and the default message of each code.
CODES: Mapping[str, tuple[int, str]] = {
    "AccessDenied": (403, "Access Denied."),
    "AuthorizationHeaderMalformed": (400, "The authorization header is malformed."),
    "AuthorizationQueryParametersError": (400, "Query-string authentication parameters are invalid."),
    "BucketAlreadyOwnedByYou": (
        409,
        "Your previous request to create the named bucket succeeded and you already own it.",
    ),
    "EntityTooLarge": (400, "Your proposed upload exceeds the maximum allowed object size."),
    "IncompleteBody": (400, "You did not provide the number of bytes specified by the Content-Length HTTP header."),
    "InternalError": (500, "We encountered an internal error, please try again."),
    "InvalidAccessKeyId": (403, "The Access Key Id you provided does not exist in our records."),
    "InvalidArgument": (400, "Invalid Argument"),
    "InvalidBucketName": (400, "The specified bucket is not valid."),
    "InvalidTokenId": (403, "The security token included in the request is invalid"),
    "MalformedXML": (400, "The XML you provided was not well-formed."),
    "MethodNotAllowed": (405, "The specified method is not allowed against this resource."),
    "MissingContentLength": (411, "You must provide the Content-Length HTTP header."),
    "NoSuchBucket": (404, "The specified bucket does not exist"),
    "NoSuchBucketPolicy": (404, "The bucket policy does not exist"),
    "NotImplemented": (501, "A header or query you provided implies functionality that is not implemented."),
    "RequestTimeTooSkewed": (403, "The difference between the request time and the server's time is too large."),
    "ServiceUnavailable": (503, "The outbox database is unavailable; please send the request again."),
    "SignatureDoesNotMatch": (
        403,
        "The signature we calculated does not match the one you provided. Check your key and signing method.",
    ),
    "SlowDown": (503, "There are too many listeners; please try again later."),
    "UnsupportedNotification": (400, "Only queue notifications are supported."),
    "XAmzContentSHA256Mismatch": (400, "The provided 'x-amz-content-sha256' header does not match what was computed."),
    "XMinioAdminConfigBadJSON": (400, "The body cannot be decrypted or read."),
    "XMinioAdminConfigEnvOverridden": (400, "The target is set by environment variables; change it there."),
    "XMinioAdminConfigTooLarge": (400, "The body is too large."),
    "XMinioAdminInvalidArgument": (400, "Invalid arguments specified."),
    "XMinioConfigError": (400, "The settings cannot be used."),
    "XMinioConfigNotFoundError": (404, "There is no such target."),
    "XMinioInvalidResourceName": (400, 'Resource name contains bad components such as ".." or ".".'),
}


# Of codes by which a caller is refused, or cannot be served: why, for operators (`app.resources.refusal`).
_REASONS: Mapping[str, str] = {
    "AccessDenied": "not-signed",
    "AuthorizationHeaderMalformed": "not-signed",
    "AuthorizationQueryParametersError": "not-signed",
    "InternalError": "internal",
    "InvalidAccessKeyId": "key-unknown",
    "InvalidTokenId": "not-signed",
    "RequestTimeTooSkewed": "wrong-time",
    "ServiceUnavailable": "database-unavailable",
    "SignatureDoesNotMatch": "wrong-signature",
    "SlowDown": "too-many-streams",
    "XAmzContentSHA256Mismatch": "wrong-signature",
}


class S3Error(Exception):
    """A refused request, by its error code; `members` are further elements of the document.

    Operators see `reason`, "" for none, whose request it is, as the audit log has it (`actor`), and a `fact`.
    """

    def __init__(
        self, code: str, message: str = "", *, reason: str = "", actor: str = "", fact: str = "", **members: str
    ) -> None:
        self.code = code
        self.status, default = CODES[code]
        self.message = message or default
        self.members = members
        self.reason = reason or _REASONS.get(code, "")
        self.actor = actor
        self.fact = fact
        super().__init__(f"{code}: {self.message}")


def request_id() -> str:
    """Return a new request id in MinIO's format."""
    return secrets.token_hex(8).upper()


def error_response(error: S3Error, *, method: str, path: str, number: str) -> Response:
    """Build the response. For HEAD, which has no body, the code is in MinIO's own headers."""
    root = Element("Error")
    elements = {"Code": error.code, "Message": error.message, **error.members, "Resource": path, "RequestId": number}
    for name, text in elements.items():
        add(root, name, text)
    headers = {"x-minio-error-code": error.code, "x-minio-error-desc": f'"{error.message}"'} if method == "HEAD" else {}
    body = b"" if method == "HEAD" else document(root)
    return Response(body, error.status, headers, mimetype="application/xml")
