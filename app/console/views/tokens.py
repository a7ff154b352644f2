"""Tokens: list, create, revoke."""

from typing import Any

from flask import Response, request

from app.api import Refused
from app.config.settings import SCOPES
from app.console import calls
from app.console.formats import command
from app.console.pages import FormRefusal, done, form_values, page, show, visitor
from app.events.frontends import S3_FRONTENDS


@page("/tokens", "GET", "POST")
def tokens() -> Response:
    """List the tokens; create one and show it, once."""
    given = form_values("name", "frontend", "tenant", "buckets", "targets", "expires")
    buckets, targets = (given[kind].replace(",", " ").split() for kind in ("buckets", "targets"))
    name, frontend = given["name"], given["frontend"]
    scopes = [scope for scope in request.form.getlist("scopes") if scope in SCOPES]
    made, refusal = None, FormRefusal(400, 409)
    if request.method == "POST":
        with refusal:
            limits: dict[str, Any] = {"buckets": buckets, "targets": targets}
            limits |= {"tenant": given["tenant"]} if given["tenant"] else {}
            limits |= {"expires": given["expires"]} if given["expires"] else {}
            made = calls.change("POST", "/v1/tokens", {"name": name, "scopes": scopes, "frontend": frontend, **limits})
    return show(
        "tokens.html",
        here="tokens",
        # The first token ends the time in which none was needed, so the list may be refused from now on.
        tokens=calls.get("/v1/tokens")["tokens"] if not (made and not visitor().name) else [],
        made=made,
        wrong=refusal.wrong,
        name="" if made else name,
        chosen=scopes,
        all_scopes=SCOPES,
        frontend="" if made else frontend,
        frontends=sorted(S3_FRONTENDS),
        tenant="" if made else given["tenant"],
        buckets="" if made else given["buckets"],
        targets="" if made else given["targets"],
        expires="" if made else given["expires"],
        own=_own(),
        cli=command(
            "token",
            "create",
            name or "NAME",
            "--scope",
            ",".join(scopes or ["read"]),
            *(("--frontend", frontend) if frontend else ()),
            *(("--tenant", given["tenant"]) if given["tenant"] else ()),
            *(word for bucket in buckets for word in ("--bucket", bucket)),
            *(word for target in targets for word in ("--target", target)),
            *(("--expires", given["expires"]) if given["expires"] else ()),
        ),
    )


@page("/tokens/<name>/revoke", "GET", "POST")
def revoke(name: str) -> Response:
    """Revoke a token, after its name was typed."""
    typed = form_values("typed")["typed"]
    problem = ""
    if request.method == "POST":
        try:
            if typed == name:
                calls.change("DELETE", f"/v1/tokens/{name}")
                return done(f"The token {name} is revoked; its sessions end with it.", "tokens")
            problem = f"type {name} to revoke it"
        except Refused as refused:
            problem = str(refused)
    return show(
        "token_revoke.html",
        here="tokens",
        name=name,
        own=name == _own(),
        last=len(calls.get("/v1/tokens")["tokens"]) == 1,
        typed=typed,
        problem=problem,
    )


def _own() -> str:
    """Return the name of the token of this session; "" if it has none."""
    return visitor().name if visitor().kind == "token" else ""
