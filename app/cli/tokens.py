"""`bucketwire token …`: who may call the API."""

import click

from app.cli.shell import Shell, with_shell
from app.cli.words import iso, words
from app.config.settings import SCOPES
from app.outbox.tokens import Tokens


@click.group()
def token() -> None:
    """Make, list and revoke bearer tokens of the API."""


@token.command()
@click.argument("name")
@click.option(
    "--scope", "given", multiple=True, default=["ingest"], show_default=True,
    help=f"One of {', '.join(SCOPES)}; more by commas or by giving the option again.",
)  # fmt: skip
@with_shell
def create(shell: Shell, name: str, given: tuple[str, ...]) -> None:
    """Make a token and print it, once: it is stored as its digest."""
    scopes = words(",".join(given))
    made = _tokens(shell).create(name, scopes)
    shell.done(made, name=name, scopes=scopes, token=made)


@token.command()
@with_shell
def ls(shell: Shell) -> None:
    """List the tokens that hold; the tokens themselves are not known."""
    rows = [
        {
            "name": found.name,
            "scopes": sorted(found.scopes),
            "origin": found.origin,
            "created_at": iso(found.created_at),
        }
        for found in _tokens(shell).list()
    ]
    columns = {"name": "name", "scopes": "scopes", "from": "origin", "created": "created_at"}
    shell.rows(rows, columns, _none(shell))


@token.command()
@click.argument("name")
@with_shell
def revoke(shell: Shell, name: str) -> None:
    """Revoke a token; effective within a second.

    Without the last one nobody may call the API until there is another.
    """
    _tokens(shell).revoke(name)
    left = bool(_tokens(shell).list())
    shell.done(f"revoked {name}" if left else f"revoked {name}; {_none(shell)}", revoked=name)


def _none(shell: Shell) -> str:
    if _tokens(shell).required():
        return "no token is left: nobody may call the API until one is made by `bucketwire token create`"
    return "no tokens yet: every program on this machine may call the API"


def _tokens(shell: Shell) -> Tokens:
    return Tokens(shell.database, shell.settings.api_tokens)
