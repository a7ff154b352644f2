"""Say whose clock is wrong where that of the provider and that of this host differ; pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeGuard

from app.quantities import format_seconds

LEEWAY = 60  # seconds by which the provider's clock may differ
_MAX_AGE_DIGITS = 9


def answered_at(headers: Mapping[str, str]) -> float | None:
    """Return when an answer was made by the clock of its server; None if that is not said.

    An answer that a cache has kept is as old as that says.
    """
    try:
        at = parsedate_to_datetime(headers.get("Date", ""))
    except (ValueError, TypeError):
        return None
    age = headers.get("Age", "")
    kept = int(age) if age.isascii() and age.isdigit() and len(age) <= _MAX_AGE_DIGITS else 0
    return at.replace(tzinfo=at.tzinfo or UTC).timestamp() + kept


def describe_clocks(issuer: str, now: float, answered: float | None, leeway: float = LEEWAY) -> str:
    """Say by how much the clock of this host differs from the provider's; "" if it is not more than the leeway."""
    if answered is None or abs(now - answered) <= leeway:
        return ""
    return (
        f"the clock of this host is {format_seconds(abs(now - answered))} {'ahead of' if now > answered else 'behind'} "
        f"that of the provider {issuer} ({_format(now)} here, {_format(answered)} there): set the one that is wrong"
    )


def describe_wrong_time(issuer: str, claims: Mapping[str, Any], now: float, answered: float | None) -> str:
    """Say what is wrong with the times of a token that was issued just now; "" if it is valid.

    `answered` is when it was issued by the clock that the provider's answer names: if that one is right, the token was
    made by another one, as on another host behind a load balancer.
    """
    off = _seconds_off(claims, now)
    if not off:
        return ""
    if both := describe_clocks(issuer, now, answered, LEEWAY / 2):
        return both
    where = "ahead of" if off > 0 else "behind"
    differs = f"{format_seconds(abs(off))} {where}"
    if answered is None:
        return f"the provider {issuer} has made a token {differs} the clock of this host: set the one that is wrong"
    issued = claims.get("iat")
    if off < 0 and _is_number(issued) and abs(issued - now) <= LEEWAY:
        lifetime = "look at the lifetime of its id tokens"
        return f"the provider {issuer} has made a token that expired {format_seconds(-off)} before: {lifetime}"
    return (
        f"the provider {issuer} has made a token {differs} the clocks of this host and of its own answers: set the "
        "clock of its host that makes tokens"
    )


def _seconds_off(claims: Mapping[str, Any], now: float) -> float:
    """Return by how much a token's times are beyond the leeway: more than 0 in the future, 0 if they are not."""
    expires, issued = claims.get("exp"), claims.get("iat")
    for early in (issued, claims.get("nbf")):
        if _is_number(early) and early > now + LEEWAY:
            return early - now
    if not _is_number(expires) or expires >= now - LEEWAY:
        return 0.0
    return (issued if _is_number(issued) and issued < now - LEEWAY else expires) - now


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _format(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
