"""Ask an OpenID Connect provider for its description of itself (OpenID Connect Discovery); judge it, and its clock."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeGuard

import requests
from requests import Response

from app.http_pools import AnswerTooLong
from app.quantities import format_seconds

TIMEOUT = 5  # seconds for a connection, and for a read
# Answers to questions in which nobody who signs in has a say. JSON may be nested too deeply for Python.
USELESS = (requests.RequestException, ValueError, RecursionError)
_MAX_SAID_CHARACTERS = 200  # characters of what the provider says that are shown
_WITHOUT_LOGIN_PROMPT = frozenset({"https://accounts.google.com"})  # it describes no prompts, and has no `login`
LEEWAY = 60  # seconds by which the provider's clock may differ
_MAX_AGE_DIGITS = 9


def ask(session: requests.Session, url: str, timeout: float = TIMEOUT) -> tuple[dict[str, Any], Response]:
    """Return what the provider has at a URL, and its answer. Raises one of `USELESS`."""
    answer = session.get(url, timeout=timeout, allow_redirects=False)
    answer.raise_for_status()
    content = answer.json()
    if not isinstance(content, dict):
        raise ValueError("the answer is no JSON object")  # noqa: TRY004 - of the same kind as an answer without JSON
    return content, answer


def discovery_url(issuer: str) -> str:
    """Return where a provider describes itself (OpenID Connect Discovery)."""
    return f"{issuer.rstrip('/')}/.well-known/openid-configuration"


def description_problems(issuer: str, description: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a provider that describes itself so cannot be used as this issuer, and what to change; pure."""
    called = description.get("issuer")
    if called != issuer:
        is_close = isinstance(called, str) and called.rstrip("/") == issuer.rstrip("/")
        differs = ", which differs in the / at its end" if is_close else ""
        yield (
            f"the provider calls itself {said(called)}, not {issuer}{differs}: set BUCKETWIRE_OIDC_ISSUER to what it "
            "calls itself"
        )
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        if not isinstance(description.get(name), str):
            yield f"the provider {issuer} does not describe its {name}: it is none of OpenID Connect"


def account_prompt(description: Mapping[str, Any]) -> str:
    """Return the `prompt` for which a provider that describes itself so asks for an account; pure.

    A provider may refuse, or ignore, one that it does not know: who is signed in there would come back again.
    """
    known = description.get("prompt_values_supported")
    has_choice = description.get("issuer") in _WITHOUT_LOGIN_PROMPT or (
        isinstance(known, list) and "select_account" in known
    )
    return "select_account" if has_choice else "login"


def said(value: object) -> str:
    """Return what the provider says, in at most so many characters as are shown."""
    text = str(value)
    return text if len(text) <= _MAX_SAID_CHARACTERS else f"{text[:_MAX_SAID_CHARACTERS]}…"


def kind(error: Exception) -> str:
    """Return in a few words why a request has failed; nothing of an address is in it."""
    inner = error.args[0] if error.args else None
    return str(inner) if isinstance(inner, AnswerTooLong) else type(error).__name__


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
