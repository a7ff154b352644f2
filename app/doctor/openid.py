"""The check of the OpenID Connect provider that people sign in to the console with."""

from collections.abc import Iterator

from app.config.settings import Settings
from app.doctor import Finding


def check_openid(settings: Settings) -> Iterator[Finding]:
    """Ask the provider what a sign-in needs of it, and name the redirect address to register there.

    Tokens work without it, so what is wrong is no problem of the service.
    """
    if not settings.oidc_issuer:
        return
    from app.console.openid import redirect_address  # noqa: PLC0415 - see below
    from app.console.openid_check import problems  # noqa: PLC0415 - slow: only where there is a provider

    register = f"the redirect address to register at the provider is {redirect_address(settings)}"
    found = [Finding("openid", "warning", problem) for problem in problems(settings)]
    yield from found
    if found:
        yield Finding("openid", "note", register)
    else:
        yield Finding("openid", "ok", f"{settings.oidc_issuer} answers and has keys; {register}")
