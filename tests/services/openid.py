"""OpenID Connect providers: the package oidc-provider of npm, which its foundation has certified, and Keycloak."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import httpx

from tests import provision
from tests.services.java import JAVA
from tests.services.server_process import LOOPBACK, PASSWORD, USER, Server

_SUPPORT = Path(__file__).parents[1] / "support"
_HEAP = 256  # MiB


@dataclass(eq=False)
class Provider(Server):
    """A provider with one client, which has this secret; anybody's password is "any"."""

    callback: str
    secret: str = "a-secret-of-the-client"
    client_id: ClassVar[str] = "bucketwire"

    @property
    def issuer(self) -> str:
        """Its identifier, which is the address where it is found."""
        return f"http://localhost:{self.port}"

    def ping(self) -> None:
        address = f"{self.issuer.replace('localhost', LOOPBACK)}/.well-known/openid-configuration"
        assert httpx.get(address, timeout=5).json()["issuer"] == self.issuer

    def browser(self) -> httpx.Client:
        """A browser that keeps the provider's cookies: it is known there after a sign-in."""
        browser = httpx.Client(timeout=120, trust_env=False)

        def trust(_response: httpx.Response) -> None:
            for cookie in browser.cookies.jar:
                cookie.secure = False  # browsers send such cookies to localhost without TLS too

        browser.event_hooks = {"response": [trust]}
        return browser

    def sign_in(self, address: str, person: str, known: httpx.Client | None = None, *, consents: bool = True) -> str:
        """Be a person's browser at the provider, from the address that begins it to the one that leads back.

        A browser that is known there signs in as the person only if the provider asks.
        """
        with nullcontext(known) if known is not None else self.browser() as browser:
            for _ in range(10):
                answer = browser.get(address)
                if not answer.is_redirect:
                    [action] = re.findall(r'<form[^>]*action="([^"]+)"', answer.text)
                    inputs = re.findall(r'<input[^>]*type="hidden"[^>]*name="(\w+)"[^>]*value="([^"]*)"', answer.text)
                    fields = {name: html.unescape(value) for name, value in inputs}
                    fields |= self.entered(person, consents=consents)
                    answer = browser.post(urljoin(address, html.unescape(action)), data=fields)
                assert answer.is_redirect, f"the provider asks for more: {answer.text[:2000]}"
                address = urljoin(address, answer.headers["Location"])
                if address.startswith(self.callback):
                    return address
        raise AssertionError(f"the provider does not lead back: {address}")

    def entered(self, person: str, *, consents: bool) -> Mapping[str, str]:
        """What the person fills into the provider's forms."""
        raise NotImplementedError


@dataclass(eq=False)
class OpenIdProvider(Provider):
    """One client; with `conform` claims about people are at the userinfo endpoint only. Each start makes new keys."""

    name: ClassVar[str] = "oidc"
    conform: bool = False
    ahead: int = 0  # seconds, of the clock that makes tokens; that of its answers is right

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
        script = _SUPPORT / "openid_provider.mjs"
        return [node, script, provision.OIDC, self.issuer, str(self.port), json.dumps(client), *more]

    def entered(self, person: str, *, consents: bool) -> Mapping[str, str]:
        return {"login": person, "password": "any"}


def openid_provider(
    callback: str, *, secret: str = "a-secret-of-the-client", conform: bool = False, ahead: int = 0
) -> OpenIdProvider:
    """A running provider for the client with this callback; without a secret it is a public one."""
    return OpenIdProvider(callback, secret, conform, ahead).start()


@dataclass(eq=False)
class Keycloak(Provider):
    """Keycloak with the realm `ops` of `keycloak_realm.json`, in a database of files of its own.

    Its clients differ from `bucketwire` by what their names say.
    """

    name: ClassVar[str] = "keycloak"
    patience: ClassVar[float] = 180
    home: Path = field(init=False)

    @property
    def issuer(self) -> str:
        return f"http://localhost:{self.port}/realms/ops"

    def prepare(self) -> None:
        self.home = self.folder / "home"
        (self.home / "data/import").mkdir(parents=True)
        for each in ("conf", "lib", "providers", "themes"):
            (self.home / each).symlink_to(provision.KEYCLOAK / each)
        (self.home / "data/import/ops-realm.json").write_text(json.dumps(self._realm()))

    def _realm(self) -> Mapping[str, Any]:
        realm: dict[str, Any] = json.loads((_SUPPORT / "keycloak_realm.json").read_text())
        password = {"type": "password", "value": "any", "temporary": False}
        for user in realm["users"]:
            name = user["username"]
            user.update(enabled=True, email=f"{name}@example.com", firstName=name, lastName="Of a Test")
            user["credentials"] = [password]
        mapper = {"name": "groups", "protocol": "openid-connect", "protocolMapper": "oidc-group-membership-mapper"}
        for client in realm["clients"]:
            named = client.pop("groups", "")
            settings = {"claim.name": "groups", "full.path": str(named == "paths").lower(), "id.token.claim": "true"}
            mappers = [mapper | {"config": settings}] if named else []
            client.update(redirectUris=[self.callback], secret=self.secret, enabled=True, protocolMappers=mappers)
        return realm

    def argv(self) -> Sequence[str | Path]:
        opened = [
            f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "security", "util", "util.concurrent")
        ]
        properties = {
            "java.util.concurrent.ForkJoinPool.common.threadFactory": (
                "io.quarkus.bootstrap.forkjoin.QuarkusForkJoinWorkerThreadFactory"
            ),
            "java.util.logging.manager": "org.jboss.logmanager.LogManager",
            "jboss.server.config.dir": self.home / "conf",
            "kc.home.dir": self.home,
            "picocli.disable.closures": "true",
        }
        java = [*JAVA, f"-Xmx{_HEAP}m", *opened, *(f"-D{name}={value}" for name, value in properties.items())]
        jar = provision.KEYCLOAK / "lib/quarkus-run.jar"
        options = ["start", "--optimized", "--import-realm", "--cache=local", "--http-enabled=true"]
        place = [f"--http-host={LOOPBACK}", f"--http-port={self.port}", f"--hostname=http://localhost:{self.port}"]
        return [*java, "-cp", jar, "io.quarkus.bootstrap.runner.QuarkusEntryPoint", *options, *place]

    def start(self) -> Self:
        """Start it, and sign somebody in: for the first one it loads more than the console would wait for."""
        super().start()
        place, form = f"{self.issuer}/protocol/openid-connect", {"client_id": "public", "redirect_uri": self.callback}
        query = {**form, "response_type": "code", "scope": "openid"}
        way_back = self.sign_in(f"{place}/auth?{urlencode(query)}", "dave")
        [code] = parse_qs(urlsplit(way_back).query)["code"]
        form |= {"grant_type": "authorization_code", "code": code}
        httpx.post(f"{place}/token", data=form, timeout=self.patience).raise_for_status()
        return self

    def env(self) -> Mapping[str, str]:
        return {"KC_BOOTSTRAP_ADMIN_USERNAME": USER, "KC_BOOTSTRAP_ADMIN_PASSWORD": PASSWORD}

    def entered(self, person: str, *, consents: bool) -> Mapping[str, str]:
        return {"username": person, "password": "any", "accept" if consents else "cancel": "yes"}

    def administrator(self) -> httpx.Client:
        """A client of the API that administers the realm."""
        form = {"grant_type": "password", "client_id": "admin-cli", "username": USER, "password": PASSWORD}
        place = f"http://localhost:{self.port}"
        token = httpx.post(f"{place}/realms/master/protocol/openid-connect/token", data=form, timeout=60)
        headers = {"Authorization": f"Bearer {token.raise_for_status().json()['access_token']}"}
        return httpx.Client(base_url=f"{place}/admin/realms/ops", headers=headers, timeout=60, trust_env=False)
