"""Verify the bearer tokens that `mc admin prometheus generate` writes into a configuration for Prometheus.

`mc` makes them by itself: JWTs of a hundred years that it signs with the secret key of its alias (HS512). They end with
the key.
"""

import base64
import hmac
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import orjson

from app.config.settings import ApiToken, S3Key

METRICS = "/metrics"
# Of the paths that `mc` writes those with metrics of notifications, which are all that there are here.
MC_METRICS: Mapping[str, str] = MappingProxyType(
    {
        "/minio/v2/metrics/cluster": METRICS,
        "/minio/metrics/v3": METRICS,
        "/minio/metrics/v3/notification": METRICS,
    }
)
_ISSUER = "prometheus"


def identify(token: str, keys: Iterable[S3Key], now: float) -> ApiToken | None:
    """Return what a token allows, which is what the S3 key does that has signed it; None if none of the keys has.

    `now` is in seconds since 1970.
    """
    signed, _, signature = token.rpartition(".")
    _, _, content = signed.partition(".")
    try:
        claims, given = orjson.loads(_decode(content)), _decode(signature)
    except ValueError:
        return None
    if not isinstance(claims, dict) or claims.get("iss") != _ISSUER:
        return None
    key = next((key for key in keys if key.access_key == claims.get("sub")), None)
    if key is None or not hmac.compare_digest(hmac.digest(key.secret_key.encode(), signed.encode(), "sha512"), given):
        return None
    expires = claims.get("exp")
    if not isinstance(expires, int | float) or not now < expires < math.inf:
        return None
    return ApiToken(key.name, key.scopes, "", kind="key")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
