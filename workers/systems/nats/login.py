"""Log in to a NATS server: token, user and password, NKEY seed or credentials file."""

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]  # it ships no types

from app.config.targets.nats import NatsConnection
from workers.targets.base import TargetUnavailable

Secret = Callable[[str], Callable[[], str]]  # returns a callback, which is called just before the secret is sent

_SEED = re.compile(rb"SU[A-Z2-7]+")


def login_options(chosen: NatsConnection, secret: Secret) -> dict[str, Any]:
    """Return the options of nats-py's `connect` for the login in the settings; `secret` wraps each secret.

    Raises `TargetUnavailable` for unreadable or invalid files.
    """
    if chosen.token:
        return {"token": secret(chosen.token)}
    if chosen.username:
        return {"user": secret(chosen.username), "password": secret(chosen.password)}
    if chosen.nkey_seed:
        lines = _lines(_read("nkey_seed", chosen.nkey_seed))
        seed = _usable("nkey_seed", chosen.nkey_seed, next(filter(_SEED.fullmatch, lines), b""))
        return {"nkeys_seed_str": seed.decode()}
    if chosen.user_credentials:
        parts = _decorated(_read("user_credentials", chosen.user_credentials))
        jwt, seed = parts if len(parts) == 2 else (b"", b"")
        _usable("user_credentials", chosen.user_credentials, seed)
        jwt_text = secret(jwt.decode())
        return {"user_jwt_cb": lambda: jwt_text().encode(), "signature_cb": lambda nonce: _signed(seed, nonce)}
    return {}


def _read(key: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise TargetUnavailable(f"{key}: {file} cannot be read: {error.strerror}") from error


def _decorated(text: bytes) -> list[bytes]:
    """Return each line of a credentials file that stands between two lines such as `-----BEGIN …-----`."""
    lines = _lines(text)
    marks = [line.startswith(b"---") and line.endswith(b"---") for line in lines]
    parts, at = [], 0
    while at + 2 < len(lines):
        if marks[at] and not marks[at + 1] and marks[at + 2]:
            parts.append(lines[at + 1])
            at += 2
        at += 1
    return parts


def _lines(text: bytes) -> list[bytes]:
    return [stripped for line in text.splitlines() if (stripped := line.strip())]


def _usable(key: str, file: str, seed: bytes) -> bytes:
    try:
        nkeys.from_seed(bytearray(seed)).wipe()
    except (nkeys.NkeysError, ValueError) as error:
        raise TargetUnavailable(f"{key}: {file} does not contain a user's NKEY seed") from error
    return seed


def _signed(seed: bytes, nonce: str) -> bytes:
    pair = nkeys.from_seed(bytearray(seed))
    try:
        return base64.b64encode(pair.sign(nonce.encode()))
    finally:
        pair.wipe()
