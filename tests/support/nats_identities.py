"""NKEYS and JWTs, as `nk` and `nsc` make them: what a server trusts, and what its users show."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from typing import Any

import nkeys


class Identity:
    """A key pair of an operator, an account or a user."""

    def __init__(self, kind: int) -> None:
        self.seed: str = nkeys.encode_seed(os.urandom(32), kind).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.public: str = self._pair.public_key.decode()

    def jwt(self, subject: Identity, kind: str, **claims: object) -> str:
        """A JWT that this identity signs for another, or for itself."""
        body: dict[str, Any] = {
            "iat": int(time.time()),
            "iss": self.public,
            "name": kind,
            "sub": subject.public,
            "nats": {"type": kind, "version": 2} | claims,
        }
        body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("=")
        text = ".".join(_part(json.dumps(each).encode()) for each in ({"typ": "JWT", "alg": "ed25519-nkey"}, body))
        return f"{text}.{_part(self._pair.sign(text.encode()))}"


def user() -> Identity:
    """A user's key pair."""
    return Identity(nkeys.PREFIX_BYTE_USER)


class Operator:
    """An operator with one account: what the server has to be told, and credentials of users."""

    def __init__(self) -> None:
        self._operator = Identity(nkeys.PREFIX_BYTE_OPERATOR)
        self._account = Identity(nkeys.PREFIX_BYTE_ACCOUNT)

    def configuration(self) -> str:
        """The part of the server's configuration that takes the place of `authorization`."""
        unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
        account = self._operator.jwt(self._account, "account", limits=unlimited | {"wildcards": True})
        return (
            f"operator: {self._operator.jwt(self._operator, 'operator')}\n"
            f"resolver: MEMORY\nresolver_preload: {{ {self._account.public}: {account} }}\n"
        )

    def credentials(self) -> str:
        """A user's credentials file."""
        them = user()
        jwt = self._account.jwt(them, "user", subs=-1, data=-1, payload=-1, pub={}, sub={})
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            f"-----BEGIN USER NKEY SEED-----\n{them.seed}\n------END USER NKEY SEED------\n"
        )


def _part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
