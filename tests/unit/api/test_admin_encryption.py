"""Bodies of MinIO's admin API, beside minio-py's own code for them."""

from __future__ import annotations

import hashlib
import io
import os

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from minio import crypto

from app.api.admin import wsgi_app
from app.api.admin.wsgi_app import BadBody, decrypt, encrypt

NIGHTLY = pytest.mark.nightly(
    "whole and cut chunks: a chunk has 16 KiB", when=lambda size: size in {15, 16 * 1024 - 1, 16 * 1024 + 1}
)

SECRET = "the/secret+key é"
SIZES = (1, 15, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 3 * 16 * 1024)


class Answer(io.BytesIO):
    """What minio-py reads a body from."""

    def release_conn(self) -> None:
        pass


@NIGHTLY
@pytest.mark.parametrize("size", [0, *SIZES])
def test_minio_py_reads_what_is_written_here(size: int) -> None:
    text = os.urandom(size)
    assert crypto.decrypt(Answer(encrypt(text, SECRET)), SECRET) == text  # type: ignore[arg-type]


@NIGHTLY
@pytest.mark.parametrize("size", SIZES)
def test_what_minio_py_writes_is_read_here(size: int) -> None:
    text = os.urandom(size)
    assert decrypt(crypto.encrypt(text, SECRET), SECRET) == text


def test_an_empty_text_is_not_nothing() -> None:
    assert decrypt(encrypt(b"", SECRET), SECRET) == b""


def test_chacha20_which_mc_chooses_on_a_processor_without_aes_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = os.urandom(20_000)
    monkeypatch.setattr(wsgi_app, "_ARGON2_AES", 1)
    body = encrypt(text, SECRET)
    assert body[32] == 1
    assert crypto.decrypt(Answer(body), SECRET) == text  # type: ignore[arg-type]
    assert decrypt(body, SECRET) == text


def test_pbkdf2_which_mc_chooses_under_fips_is_read() -> None:
    salt, nonce = os.urandom(32), os.urandom(8)
    aes = AESGCM(hashlib.pbkdf2_hmac("sha256", SECRET.encode(), salt, 8192))
    associated = b"\x80" + aes.encrypt(nonce + bytes(4), b"", b"")
    body = salt + b"\x02" + nonce + aes.encrypt(nonce + b"\x01\0\0\0", b"notify_redis", associated)
    assert decrypt(body, SECRET) == b"notify_redis"


WHOLE = encrypt(os.urandom(40_000), SECRET)
CUT = {
    "empty": b"",
    "one byte": b"x",
    "a header alone": WHOLE[:41],
    "half a tag": WHOLE[:50],
    "an unknown algorithm": WHOLE[:32] + b"\x03" + WHOLE[33:],
    "another algorithm": WHOLE[:32] + b"\x01" + WHOLE[33:],
    "another salt": bytes([WHOLE[0] ^ 1]) + WHOLE[1:],
    "another nonce": WHOLE[:40] + bytes([WHOLE[40] ^ 1]) + WHOLE[41:],
    "a flipped bit": WHOLE[:20_000] + bytes([WHOLE[20_000] ^ 1]) + WHOLE[20_001:],
    "cut off within a chunk": WHOLE[:30_000],
    "cut off between two chunks": WHOLE[: 41 + 16 * 1024 + 16],
    "one byte more": WHOLE + b"x",
    "a chunk twice": WHOLE[: 41 + 16 * 1024 + 16] + WHOLE[41:],
    "plain": b"notify_webhook:x endpoint=http://127.0.0.1:1/ auth_token=s3cret queue_limit=5",
}


@pytest.mark.parametrize("body", CUT.values(), ids=CUT)
def test_what_was_changed_or_cut_off_is_refused(body: bytes) -> None:
    with pytest.raises(BadBody):
        decrypt(body, SECRET)


def test_the_secret_of_another_key_opens_nothing() -> None:
    with pytest.raises(BadBody, match="not encrypted with this secret key"):
        decrypt(WHOLE, SECRET + "x")


@pytest.mark.parametrize("name", ["a header alone", "an unknown algorithm", "nothing"])
def test_nothing_is_derived_for_what_cannot_be_a_body(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = CUT.get(name, b"")
    monkeypatch.setattr(wsgi_app, "_derive", lambda *_: pytest.fail("derived"))
    with pytest.raises(BadBody):
        decrypt(body, SECRET)
