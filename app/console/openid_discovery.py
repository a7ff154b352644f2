"""Ask an OpenID Connect provider for its description of itself (OpenID Connect Discovery), and judge it."""

from collections.abc import Iterator, Mapping
from typing import Any

import requests
from requests import Response

from app.http_pools import AnswerTooLong

TIMEOUT = 5  # seconds for a connection, and for a read
# Answers to questions in which nobody who signs in has a say. JSON may be nested too deeply for Python.
USELESS = (requests.RequestException, ValueError, RecursionError)
_MAX_SAID_CHARACTERS = 200  # characters of what the provider says that are shown
_WITHOUT_LOGIN_PROMPT = frozenset({"https://accounts.google.com"})  # it describes no prompts, and has no `login`


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
