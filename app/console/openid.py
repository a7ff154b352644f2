"""People who have signed in with an OpenID Connect provider: what a browser keeps of them, and what they may do.

The way to the provider and back is the authorization code flow with PKCE, state and nonce. What a browser carries from
the sign-in page to the provider and back is in a sealed cookie of ten minutes, so any API process can end what another
one has begun.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from app.config.settings import ApiToken, Settings

ADMIN, READ, EVERYBODY = "admin", "read", "*"
_MAX_KEY_CHARACTERS = 200  # characters
_GROUPS = frozenset({"groups", "roles"})  # claims whose values are of no person
_MAX_NAMED = 5  # values
CALLBACK = "openid-callback"  # in the console's folder, whose cookies a page below it would not get


@dataclass(frozen=True, slots=True)
class Begun:
    """What a browser keeps while its person is at the provider."""

    state: str
    nonce: str
    verifier: str
    following: str  # the page to show then


@dataclass(frozen=True, slots=True)
class Person:
    """Who has signed in, and those of the claim's values that the settings name.

    Only issuer and subject together are one person's for ever: two people can have the same `name`, one after the other
    or at once, and choose it themselves.
    """

    issuer: str
    subject: str
    name: str
    values: tuple[str, ...]

    @property
    def key(self) -> str:
        """Return issuer and subject as one text without spaces, of at most 200 characters."""
        key = f"{self.issuer}#{quote(self.subject, safe='@:|~')}"
        return key if len(key) <= _MAX_KEY_CHARACTERS else hashlib.sha256(key.encode()).hexdigest()


def redirect_address(settings: Settings) -> str:
    """Return the address to which the provider leads a browser back, which has to be registered there."""
    return settings.oidc_console_url + CALLBACK


def granted(settings: Settings, claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Return those of the claim's values that give a scope; pure.

    A text is one value, also if it has spaces. An email address counts only if the provider has verified it.
    """
    value = claims.get(settings.oidc_claim)
    if settings.oidc_claim == "email" and claims.get("email_verified") is not True:
        value = None
    values = value if isinstance(value, list) else [value]
    has = {EVERYBODY, *(each for each in values if isinstance(each, str))}
    return tuple(each for each in dict.fromkeys((*settings.oidc_admin, *settings.oidc_read)) if each in has)


def lacking(settings: Settings, claims: Mapping[str, Any]) -> str:
    """Say what somebody lacks who may do nothing; pure.

    Groups are named, so that people know what to ask for. Values of another claim are not: they may be addresses of
    those who may sign in.
    """
    has = "has no value that gives access" if settings.oidc_claim in claims else "is missing"
    named = tuple(dict.fromkeys((*settings.oidc_admin, *settings.oidc_read)))
    if settings.oidc_claim not in _GROUPS:
        return f"the claim {settings.oidc_claim} {has}"
    more = f" or {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
    return f"the claim {settings.oidc_claim} {has}: {' or '.join(named[:_MAX_NAMED])}{more}"


def scopes(settings: Settings, values: Collection[str]) -> frozenset[str]:
    """Return the scopes that these values of the claim give now; pure."""
    if set(values) & set(settings.oidc_admin):
        return frozenset({ADMIN})
    return frozenset({READ}) if set(values) & set(settings.oidc_read) else frozenset()


def identity(settings: Settings, person: Person) -> ApiToken | None:
    """Return what stands in for a token in the calls of a person's session; None if it may do nothing any more."""
    if not settings.oidc_issuer or person.issuer != settings.oidc_issuer:
        return None
    has = scopes(settings, person.values)
    return ApiToken(person.name, has, "", kind="openid", person=person.key) if has else None
