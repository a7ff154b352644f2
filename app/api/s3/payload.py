"""The body of a signed request: whole and held against its digest, or in signed or unsigned chunks."""

import hashlib
import hmac
import re
from typing import IO

from app.api.s3.errors import S3Error
from app.api.s3.signature import UNSIGNED, Seal

LIMIT = 1 << 20  # bytes of a notification document; MinIO's own limit for documents
_STREAMING = "STREAMING-"
_SIGNED_CHUNKS = ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")
_UNSIGNED_CHUNKS = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})(?:;chunk-signature=([0-9a-f]{64}))?")


def read(stream: IO[bytes], length: int, seal: Seal) -> bytes:
    """The body as it was before it was signed. Raises `S3Error` where it is not what the signature says.

    Trailing headers are passed over: every byte of the content is under a signature of its own where there are any.
    """
    if length > LIMIT:
        raise S3Error("EntityTooLarge")
    body = stream.read(length)
    if len(body) < length:
        raise S3Error("IncompleteBody")
    if seal.content in _SIGNED_CHUNKS:
        return _joined(body, seal)
    if seal.content == _UNSIGNED_CHUNKS:
        return _joined(body, None)
    if seal.content.startswith(_STREAMING):
        raise S3Error("NotImplemented", f"{seal.content[:60]} is not known here.")
    if seal.content != UNSIGNED and not hmac.compare_digest(
        hashlib.sha256(body).hexdigest().encode(), seal.content.encode()
    ):
        raise S3Error("XAmzContentSHA256Mismatch")
    return body


def _joined(body: bytes, seal: Seal | None) -> bytes:
    content, place = bytearray(), 0
    before = seal.signature if seal else ""
    while True:
        end = body.find(b"\r\n", place)
        head = _CHUNK.fullmatch(body[place:end]) if end >= 0 else None
        if head is None:
            raise S3Error("IncompleteBody", "The chunks of the body are not as aws-chunked has them.")
        start, size = end + 2, int(head[1], 16)
        chunk = body[start : start + size]
        if len(chunk) < size:
            raise S3Error("IncompleteBody")
        if seal:
            given, before = (head[2] or b"").decode(), seal.of_chunk(before, chunk)
            if not hmac.compare_digest(before, given):
                raise S3Error("SignatureDoesNotMatch")
        if not size:
            return bytes(content)
        content += chunk
        place = start + size + 2
