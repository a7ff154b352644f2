"""Ask the OpenID Connect provider what a sign-in needs of it, and say what is wrong and what to change.

Nobody signs in, so whether the client, its secret and its redirect address are registered stays unknown.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import requests
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from app.config.settings import Settings
from app.console.openid_discovery import (
    USELESS,
    answered_at,
    ask,
    describe_clocks,
    description_problems,
    discovery_url,
    kind,
)
from app.console.openid_provider import ALGORITHMS, bound, without_login

_SECONDS = 3.0  # for both answers
_KEY_TYPES = frozenset({"RSA", "EC", "OKP"})


def problems(settings: Settings) -> Iterator[str]:
    """Yield what keeps people from signing in with the provider, as far as it can be asked; nothing if all is well."""
    issuer = settings.oidc_issuer
    with bound(without_login(), _SECONDS) as session:
        try:
            description, answer = ask(session, discovery_url(issuer), _SECONDS)
        except USELESS as error:
            yield f"the provider {issuer} cannot be reached: {_describe(error, 'BUCKETWIRE_OIDC_ISSUER')}"
            return
        if clocks := describe_clocks(issuer, time.time(), answered_at(answer.headers)):
            yield clocks
        found = list(description_problems(issuer, description))
        yield from found or _algorithm_problems(issuer, description)
        if found:
            return
        try:
            keys, _ = ask(session, description["jwks_uri"], _SECONDS)
        except USELESS as error:
            yield f"the keys of the provider {issuer} cannot be read: {_describe(error, 'its jwks_uri')}"
            return
    yield from key_problems(issuer, keys)


def _algorithm_problems(issuer: str, description: Mapping[str, Any]) -> Iterator[str]:
    signs = description.get("id_token_signing_alg_values_supported")
    if isinstance(signs, list) and not set(ALGORITHMS) & {each for each in signs if isinstance(each, str)}:
        yield f"the provider {issuer} signs id tokens by no algorithm with a public key: let it use RS256 or ES256"


def key_problems(issuer: str, content: Mapping[str, Any]) -> Iterator[str]:
    """Yield why these keys of a provider cannot verify an id token; pure."""
    mend = "let the provider have a key that signs with RS256 or ES256"
    try:
        keys = KeySet.import_key_set(content)  # type: ignore[arg-type]  # it is checked here
    except (JoseError, ValueError, KeyError, TypeError, AttributeError) as error:
        yield f"the keys of the provider {issuer} are not valid: {kind(error)}; {mend}"
        return
    if not any(key.key_type in _KEY_TYPES and key.as_dict().get("use", "sig") == "sig" for key in keys):
        yield f"the provider {issuer} has no key that verifies an id token: {mend}"


def _describe(error: Exception, setting: str) -> str:
    match error:
        case requests.exceptions.SSLError():
            mend = "set REQUESTS_CA_BUNDLE to the file of the authority that signed its certificate"
        case requests.HTTPError(response=requests.Response(status_code=status)):
            return f"it answers {status}; compare {setting} with what the provider shows"
        case requests.RequestException():
            mend = "look at its name, at the proxy and at firewalls from the API's host"
        case _:
            return f"its answer is no JSON object; compare {setting} with what the provider shows"
    return f"{kind(error)}; {mend}"
