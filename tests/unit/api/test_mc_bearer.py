"""Tokens that `mc admin prometheus generate` has made, and what is none."""

from __future__ import annotations

import base64
import hmac

import orjson
import pytest

from app.api.auth import identify_mc
from app.config.settings import S3Key

NOW = 1_800_000_000.0
KEYS = (
    S3Key("default", frozenset({"admin", "read"}), "ANOTHER", "another-secret"),
    S3Key("watch", frozenset({"read"}), "AKAKAKAKAK", "secretsecret"),
)
OF_MC = (  # by mc of 2025-03-13
    "eyJhbGciOiJIUzUxMiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJwcm9tZXRoZXVzIiwic3ViIjoiQUtBS0FLQUtBSyIsImV4cCI6NDk0OTYyODk5OX0."
    "zSH8Ws-c_3_lBldAmQAjZRtVd5DtJqaEXX2xiiX5s251bTeGNSY34DnBBja0fgjMdXI7briuCw3QLphGcy3D1A"
)
CLAIMS = {"iss": "prometheus", "sub": "AKAKAKAKAK", "exp": NOW + 60}


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def token(claims: object, secret: str = "secretsecret", digest: str = "sha512", algorithm: str = "HS512") -> str:
    signed = f"{encoded(orjson.dumps({'alg': algorithm}))}.{encoded(orjson.dumps(claims))}"
    return f"{signed}.{encoded(hmac.digest(secret.encode(), signed.encode(), digest))}"


@pytest.mark.parametrize("text", [OF_MC, token(CLAIMS)])
def test_a_token_allows_what_the_key_does_that_has_signed_it(text: str) -> None:
    found = identify_mc(text, KEYS, NOW)
    assert found is not None
    assert (found.actor, found.scopes) == ("key:watch", {"read"})


@pytest.mark.parametrize(
    "text",
    [
        token(CLAIMS, "another-secret"),  # of the other key
        token(CLAIMS | {"sub": "ANOTHER"}),
        token(CLAIMS | {"sub": ["AKAKAKAKAK"]}),
        token(CLAIMS, digest="sha256", algorithm="HS256"),
        f"{token(CLAIMS, algorithm='none').rpartition('.')[0]}.",
        token(CLAIMS | {"iss": "minio"}),
        *(token(CLAIMS | {"exp": value}) for value in (NOW, True, None, "4949628999", [1])),
        token({name: value for name, value in CLAIMS.items() if name != "exp"}),
        token([CLAIMS]),
        OF_MC[:-2],
        OF_MC.replace(".", "..", 1),
        "a.b.c",
        "..",
        "é.é.é",
        "a-token",
        "",
    ],
)
def test_other_tokens_allow_nothing(text: str) -> None:
    assert identify_mc(text, KEYS, NOW) is None
    assert identify_mc(text, (), NOW) is None
