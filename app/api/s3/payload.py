"""Read the body of a signed request: as a whole with a digest, or in signed or unsigned chunks."""

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
    """Read and decode the body. Raises `S3Error` if it does not match the signature.

    Trailing headers are ignored: if chunks are signed, a signature covers every byte of the content.
    """
    if length > LIMIT:
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
