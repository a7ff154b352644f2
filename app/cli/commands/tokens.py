"""`bucketwire token …`: the bearer tokens of the API."""

import click

from app.cli.context import CommandContext, with_context
from app.cli_common.param_types import TARGET, iso, split_words
from app.config.arn import TargetId
from app.config.settings import SCOPES
from app.events.frontends import S3_FRONTENDS
from app.outbox.tokens import Tokens


@click.group()
def token() -> None:
    """Create, list and revoke bearer tokens of the API."""


@token.command()
@click.argument("name")
@click.option(
    "--scope", "scope_options", multiple=True, default=["ingest"], show_default=True,
    help=f"One of {', '.join(SCOPES)}; several comma-separated, or by repeating the option.",
)  # fmt: skip
@click.option("--bucket", "buckets", multiple=True, help="Limit it to events of this bucket. Can be repeated.")
@click.option("--target", "targets", type=TARGET, multiple=True, help="Limit it to this target. Can be repeated.")
@click.option(
    "--frontend", type=click.Choice(sorted(S3_FRONTENDS)),
    help="The sender of the events that are posted with it, where they do not show it.",
)  # fmt: skip
@with_context
def create(
    context: CommandContext, name: str, scope_options: tuple[str, ...], buckets: tuple[str, ...],
    targets: tuple[TargetId, ...], frontend: str | None,
) -> None:  # fmt: skip
    """Create a token and print it; it cannot be shown again, because only its digest is stored.

    With --bucket or --target it allows only what concerns the named buckets' events and the named targets.
    """
    scopes = split_words(",".join(scope_options))
    created = _tokens(context).create(name, scopes, buckets=buckets, targets=targets, frontend=frontend or "")
    context.done(
        created, name=name, scopes=scopes, buckets=list(buckets), targets=list(map(str, targets)),
        frontend=frontend or "", token=created,
    )  # fmt: skip


@token.command()
@with_context
def ls(context: CommandContext) -> None:
    """List the valid tokens by name; the tokens themselves are not stored."""
    rows = [
        {
            "name": stored.name,
            "scopes": sorted(stored.scopes),
            "buckets": list(stored.buckets),
            "targets": list(stored.targets),
            "frontend": stored.frontend,
            "origin": stored.origin,
            "created_at": iso(stored.created_at),
        }
        for stored in _tokens(context).list()
    ]
    columns = {
        "name": "name", "scopes": "scopes", "buckets": "buckets", "targets": "targets", "frontend": "frontend",
        "from": "origin",
        "created": "created_at",
    }  # fmt: skip
    context.rows(rows, columns, _describe_no_tokens(context))


@token.command()
@click.argument("name")
@with_context
def revoke(context: CommandContext, name: str) -> None:
    """Revoke a token; effective within 1 s.

    After the last one is revoked, no client can use the API until a token is created.
    """
    _tokens(context).revoke(name)
    left = bool(_tokens(context).list())
    context.done(f"revoked {name}" if left else f"revoked {name}; {_describe_no_tokens(context)}", revoked=name)


def _describe_no_tokens(context: CommandContext) -> str:
    if _tokens(context).required():
        return "no token is left: no client can use the API; create one: `bucketwire token create`"
    return "no tokens yet: every program on this machine can use the API"


def _tokens(context: CommandContext) -> Tokens:
    return Tokens(context.database, context.settings.api_tokens)
