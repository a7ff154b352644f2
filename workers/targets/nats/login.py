"""Log in to a NATS server: token, user and password, NKEY seed or credentials file."""

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]  # it ships no types

from app.config.targets.nats import NatsSettings
from workers.targets.base import TargetUnavailable

Secret = Callable[[str], Callable[[], str]]  # returns a callback, which is called just before the secret is sent

_DECORATED = re.compile(rb"-{3,}[^\n]*-{3,}\r?\n\s*(\S+)\s*\r?\n-{3,}[^\n]*-{3,}")
_SEED = re.compile(rb"^\s*(SU[A-Z2-7]+)\s*$", re.MULTILINE)


def login_options(chosen: NatsSettings, secret: Secret) -> dict[str, Any]:
    """Return the options of nats-py's `connect` for the login in the settings; `secret` wraps each secret.

    Raises `TargetUnavailable` for unreadable or invalid files.
    """
    if chosen.token:
        return {"token": secret(chosen.token)}
    if chosen.username:
        return {"user": secret(chosen.username), "password": secret(chosen.password)}
    if chosen.nkey_seed:
        match = _SEED.search(_read("nkey_seed", chosen.nkey_seed))
        seed = _usable("nkey_seed", chosen.nkey_seed, match[1] if match else b"")
        return {"nkeys_seed_str": seed.decode()}
    if chosen.user_credentials:
        parts = _DECORATED.findall(_read("user_credentials", chosen.user_credentials))
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
