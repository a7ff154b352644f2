"""One request of MinIO's admin API: its parameters, its encrypted body, and its encrypted response."""

from dataclasses import dataclass

import orjson
from werkzeug.wrappers import Request, Response

from app.api.admin.encryption import BadBody, decrypt, encrypt
from app.api.s3 import payload
from app.api.s3.errors import S3Error
from app.api.s3.signature import Received, Seal
from app.api.services import Services

LIMIT = 262_272  # bytes of an encrypted body; MinIO's own limit


@dataclass(frozen=True, slots=True)
class AdminCall:
    """A request with a valid signature of a key that has the scope admin."""

    parts: Services
    request: Request
    received: Received
    seal: Seal
    uptime: int  # seconds

    def parameter(self, name: str) -> str:
        """Return a query parameter, an empty text if it is missing."""
        return self.received.parameter(name) or ""

    def text(self) -> str:
        """Read and decrypt the body. Raises `S3Error`; a body over the limit is not read."""
        length = self.request.content_length
        if length is None:
            raise S3Error("MissingContentLength")
        if length > LIMIT:
            raise S3Error("XMinioAdminConfigTooLarge", f"The body has {length} bytes; at most {LIMIT} are allowed.")
        try:
            return decrypt(payload.read(self.request.stream, length, self.seal), self.seal.key.secret_key).decode()
        except (BadBody, UnicodeDecodeError) as error:
            problem = error if isinstance(error, BadBody) else "the text is not UTF-8"
            raise S3Error("XMinioAdminConfigBadJSON", f"{problem}.".capitalize()) from None

    def encrypted(self, text: str) -> Response:
        """Return a response that only the caller can read."""
        return Response(encrypt(text.encode(), self.seal.key.secret_key), mimetype="application/json")


def json_answer(value: object) -> Response:
    """Return a response in JSON."""
    return Response(orjson.dumps(value), mimetype="application/json")
