"""Signing in to the console by a provider of OpenID Connect."""

from __future__ import annotations

from app.config.settings import Settings
from app.doctor.dependencies import check_openid
from tests.integration.console.conftest import TOKENS, Browser, Page
from tests.services.openid import Provider

CONSOLE = "http://localhost/console/"


def settings_of(provider: Provider, **more: str) -> dict[str, str]:
    return {
        "api_tokens": TOKENS, "oidc_issuer": provider.issuer, "oidc_client_id": provider.client_id,
        "oidc_client_secret": provider.secret, "oidc_console_url": CONSOLE, "oidc_admin": "platform",
        "oidc_read": "auditors",
    } | more  # fmt: skip


def at_provider(provider: Provider, browser: Browser, person: str, path: str = "openid") -> str:
    """What the provider has the browser ask for, after the person has signed in there."""
    page = browser.get(path)
    assert page.status == 303, page.text
    return provider.sign_in(page.location, person).removeprefix(provider.callback)


def back(browser: Browser, query: str) -> Page:
    return browser.get(f"openid-callback{query}")


def sign_in(provider: Provider, browser: Browser, person: str, path: str = "openid") -> Page:
    return back(browser, at_provider(provider, browser, person, path))


def checked(provider: Provider, **changed: str) -> list[tuple[str, str]]:
    environ = {f"BUCKETWIRE_{name.upper()}": value for name, value in settings_of(provider, **changed).items()}
    return [(one.grade, one.text) for one in check_openid(Settings.from_environ(environ))]
