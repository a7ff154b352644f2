"""One request of MinIO's admin API: its parameters, its encrypted body, and its encrypted response.

A body is encrypted with the secret key of the caller: `salt (32) | algorithm (1) | nonce (8)` and a stream of sealed
chunks of 16 KiB, each with a tag of 16 bytes. The key is derived from the secret key. The nonce of a chunk ends in its
number, from 1; what is authenticated with it is 0x00, or 0x80 for the last chunk, and the tag of an empty text under
number 0. So no chunk can be changed, moved, left out or added.

The derivation costs 64 MiB, whatever the body says: the format fixes it. One at a time is derived in a process.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from werkzeug.wrappers import Request, Response

from app.api.s3.errors import S3Error
from app.api.s3.signature import Received, Seal, read_signed_body
from app.api.services import Services

LIMIT = 262_272  # bytes of an encrypted body; MinIO's own limit
_ARGON2_AES, _ARGON2_CHACHA, _PBKDF2_AES = 0, 1, 2
_SALT, _NONCE, _TAG, _CHUNK = 32, 8, 16, 16 * 1024  # bytes
_HEADER = _SALT + 1 + _NONCE
_deriving = Lock()


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
            return decrypt(read_signed_body(self.request.stream, length, self.seal), self.seal.key.secret_key).decode()
        except (BadBody, UnicodeDecodeError) as error:
            problem = error if isinstance(error, BadBody) else "the text is not UTF-8"
            raise S3Error("XMinioAdminConfigBadJSON", f"{problem}.".capitalize()) from None

    def encrypted(self, text: str) -> Response:
        """Return a response that only the caller can read."""
        return Response(encrypt(text.encode(), self.seal.key.secret_key), mimetype="application/json")


def json_answer(value: object) -> Response:
    """Return a response in JSON."""
    return Response(orjson.dumps(value), mimetype="application/json")


class BadBody(ValueError):
    """The body was not encrypted with this secret key, or it was changed or cut off."""


def encrypt(text: bytes, secret: str) -> bytes:
    """Return the text as a body that `mc` and minio-py decrypt with the same secret key."""
    salt, nonce = secrets.token_bytes(_SALT), secrets.token_bytes(_NONCE)
    stream = _Stream(_ARGON2_AES, secret, salt, nonce)
    return b"".join([salt, bytes([_ARGON2_AES]), nonce, *stream.seal(text)])


def decrypt(body: bytes, secret: str) -> bytes:
    """Return the text of a body. Raises `BadBody`; nothing is derived for a body that cannot be one."""
    if len(body) < _HEADER + _TAG:
        raise BadBody("the body is too short to be encrypted with the secret key")
    salt, algorithm, nonce = body[:_SALT], body[_SALT], body[_SALT + 1 : _HEADER]
    if algorithm not in (_ARGON2_AES, _ARGON2_CHACHA, _PBKDF2_AES):
        raise BadBody("the body is not encrypted by an algorithm of MinIO's admin API")
    try:
        return b"".join(_Stream(algorithm, secret, salt, nonce).open(body[_HEADER:]))
    except InvalidTag:
        raise BadBody("the body is not encrypted with this secret key, or it was changed or cut off") from None


class _Stream:
    """The chunks of one body."""

    def __init__(self, algorithm: int, secret: str, salt: bytes, nonce: bytes) -> None:
        key = _derive(algorithm, secret.encode(), salt)
        self._cipher = ChaCha20Poly1305(key) if algorithm == _ARGON2_CHACHA else AESGCM(key)
        self._nonce = nonce
        self._associated = self._cipher.encrypt(self._numbered(0), b"", b"")

    def seal(self, text: bytes) -> Iterator[bytes]:
        """Yield the sealed chunks of a text."""
        for number, chunk, associated in self._chunks(text, _CHUNK):
            yield self._cipher.encrypt(self._numbered(number), chunk, associated)

    def open(self, sealed: bytes) -> Iterator[bytes]:
        """Yield the text of sealed chunks. Raises `InvalidTag`."""
        for number, chunk, associated in self._chunks(sealed, _CHUNK + _TAG):
            yield self._cipher.decrypt(self._numbered(number), chunk, associated)

    def _chunks(self, content: bytes, size: int) -> Iterator[tuple[int, bytes, bytes]]:
        starts = range(0, max(len(content), 1), size)  # an empty text has a chunk too
        for number, start in enumerate(starts, 1):
            mark = b"\x80" if start == starts[-1] else b"\x00"
            yield number, content[start : start + size], mark + self._associated

    def _numbered(self, number: int) -> bytes:
        return self._nonce + number.to_bytes(4, "little")


def _derive(algorithm: int, secret: bytes, salt: bytes) -> bytes:
    with _deriving:
        if algorithm == _PBKDF2_AES:
            return PBKDF2HMAC(SHA256(), 32, salt, 8192).derive(secret)
        return Argon2id(salt=salt, length=32, iterations=1, lanes=4, memory_cost=64 * 1024).derive(secret)
