"""`bucketwire token …`: who may call the API."""

import click

from app.cli.context import CommandContext, with_context
from app.cli_common.param_types import iso, split_words
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
@with_context
def create(context: CommandContext, name: str, given: tuple[str, ...]) -> None:
    """Make a token and print it, once: it is stored as its digest."""
    scopes = split_words(",".join(given))
    made = _tokens(context).create(name, scopes)
    context.done(made, name=name, scopes=scopes, token=made)


@token.command()
@with_context
def ls(context: CommandContext) -> None:
    """List the tokens that hold; the tokens themselves are not known."""
    rows = [
        {
            "name": found.name,
            "scopes": sorted(found.scopes),
            "origin": found.origin,
            "created_at": iso(found.created_at),
        }
        for found in _tokens(context).list()
    ]
    columns = {"name": "name", "scopes": "scopes", "from": "origin", "created": "created_at"}
    context.rows(rows, columns, _none(context))


@token.command()
@click.argument("name")
@with_context
def revoke(context: CommandContext, name: str) -> None:
    """Revoke a token; effective within a second.

    Without the last one nobody may call the API until there is another.
    """
    _tokens(context).revoke(name)
    left = bool(_tokens(context).list())
    context.done(f"revoked {name}" if left else f"revoked {name}; {_none(context)}", revoked=name)


def _none(context: CommandContext) -> str:
    if _tokens(context).required():
        return "no token is left: nobody may call the API until one is made by `bucketwire token create`"
    return "no tokens yet: every program on this machine may call the API"


def _tokens(context: CommandContext) -> Tokens:
    return Tokens(context.database, context.settings.api_tokens)
