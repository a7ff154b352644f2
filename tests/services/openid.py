"""An OpenID Connect provider: the package oidc-provider of npm, which its foundation has certified."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urljoin

import httpx

from tests import provision
from tests.services.server_process import LOOPBACK, Server

_SCRIPT = Path(__file__).parents[1] / "support/openid_provider.mjs"


@dataclass(eq=False)
class OpenIdProvider(Server):
    """One client; with `conform` claims about people are at the userinfo endpoint only. Each start makes new keys."""

    name: ClassVar[str] = "oidc"
    callback: str
    secret: str = "a-secret-of-the-client"
    conform: bool = False
    ahead: int = 0  # seconds, of the clock that makes tokens; that of its answers is right
    client_id: ClassVar[str] = "bucketwire"

    @property
    def issuer(self) -> str:
        """Its identifier, which is the address where it is found."""
        return f"http://localhost:{self.port}"

    def argv(self) -> Sequence[str | Path]:
        client = {
            "client_id": self.client_id,
            "redirect_uris": [self.callback],
            "response_types": ["code"],
            "grant_types": ["authorization_code"],
            "token_endpoint_auth_method": "client_secret_basic" if self.secret else "none",
        } | ({"client_secret": self.secret} if self.secret else {})
        node = shutil.which("node") or "node"
        more = ["yes" if self.conform else "no", str(self.ahead)]
        return [node, _SCRIPT, provision.OIDC, self.issuer, str(self.port), json.dumps(client), *more]

    def ping(self) -> None:
        address = f"http://{LOOPBACK}:{self.port}/.well-known/openid-configuration"
        assert httpx.get(address, timeout=5).json()["issuer"]

    def browser(self) -> httpx.Client:
        """A browser that keeps the provider's cookies: it is known there after a sign-in."""
        return httpx.Client(timeout=30, trust_env=False)

    def sign_in(self, address: str, person: str, known: httpx.Client | None = None) -> str:
        """Be a person's browser at the provider, from the address that begins it to the one that leads back.

        A browser that is known there signs in as the person only if the provider asks.
        """
        with nullcontext(known) if known is not None else self.browser() as browser:
            for _ in range(10):
                answer = browser.get(address)
                if answer.is_redirect:
                    address = urljoin(address, answer.headers["Location"])
                else:
                    [action] = re.findall(r'<form[^>]*action="([^"]+)"', answer.text)
                    inputs = re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', answer.text)
                    fields = {name: html.unescape(value) for name, value in inputs}
                    sent = browser.post(
                        urljoin(address, html.unescape(action)), data=fields | {"login": person, "password": "any"}
                    )
                    address = urljoin(address, sent.headers["Location"])
                if address.startswith(self.callback):
                    return address
        raise AssertionError(f"the provider does not lead back: {answer.text[:2000]}")


def openid_provider(
    callback: str, *, secret: str = "a-secret-of-the-client", conform: bool = False, ahead: int = 0
) -> OpenIdProvider:
    """A running provider for the client with this callback; without a secret it is a public one."""
    return OpenIdProvider(callback, secret, conform, ahead).start()
