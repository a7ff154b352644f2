"""`bucketwire token …`: the bearer tokens of the API."""

import click

from app.cli.context import CommandContext, named_path, with_api
from app.cli.groups import Group
from app.cli_common.param_types import TARGET, complete_scopes, split_words
from app.config.arn import TargetId
from app.config.settings import SCOPES
from app.events.frontends import S3_FRONTENDS
from app.resources.service import Token

_NONE_LEFT = "no token is left: no client can use the API; create one: `bucketwire token create`"
_NONE_YET = "no tokens yet: every program on this machine can use the API"


@click.group(cls=Group)
def token() -> None:
    """Create, list and revoke bearer tokens of the API."""


@token.command()
@click.argument("name")
@click.option(
    "--scope", "scope_options", multiple=True, shell_complete=complete_scopes, default=["ingest"], show_default=True,
    help=f"One of {', '.join(SCOPES)}; several comma-separated, or by repeating the option.",
)  # fmt: skip
@click.option("--bucket", "buckets", multiple=True, help="Limit it to events of this bucket. Can be repeated.")
@click.option("--target", "targets", type=TARGET, multiple=True, help="Limit it to this target. Can be repeated.")
@click.option(
    "--frontend", type=click.Choice(sorted(S3_FRONTENDS)),
    help="The sender of the events that are posted with it, where they do not show it.",
)  # fmt: skip
@click.option(
    "--tenant", default="",
    help="Whose buckets the events that are posted with it concern, recorded as TENANT:BUCKET; it is limited to them. "
    "arn: the tenant in the bucket's ARN (Ceph), without a limit.",
)  # fmt: skip
@click.option("--expires", default="", help="When it becomes invalid: in how long, such as 90d, or RFC 3339.")
@with_api
def create(
    context: CommandContext, name: str, scope_options: tuple[str, ...], buckets: tuple[str, ...],
    targets: tuple[TargetId, ...], frontend: str | None, tenant: str, expires: str,
) -> None:  # fmt: skip
    """Create a token and print it; it cannot be shown again, because only its digest is stored.

    With --bucket, --target or --tenant it allows only what concerns the named buckets' events and the named targets.
    """
    body = {
        "name": name, "scopes": split_words(",".join(scope_options)), "buckets": buckets,
        "targets": list(map(str, targets)), "frontend": frontend or "", "tenant": tenant,
        **({"expires": expires} if expires else {}),
    }  # fmt: skip
    created = context.api.change("POST", "/v1/tokens", body)
    context.done(created["token"], **created)


@token.command()
@with_api
def ls(context: CommandContext) -> None:
    """List the tokens by name, also those that have expired; the tokens themselves are not stored."""
    answer = context.api.get("/v1/tokens")
    context.rows(answer["tokens"], Token.columns, _NONE_LEFT if answer["required"] else _NONE_YET)


@token.command()
@click.argument("name")
@with_api
def revoke(context: CommandContext, name: str) -> None:
    """Revoke a token; effective within 1 s.

    After the last one is revoked, no client can use the API until a token is created.
    """
    path = named_path("/v1/tokens", name, f"there is no token {name!r}; `bucketwire token ls` lists them")
    left = [token for token in context.api.get("/v1/tokens")["tokens"] if token["name"] != name]
    context.api.change("DELETE", path)
    context.done(f"revoked {name}" if left else f"revoked {name}; {_NONE_LEFT}", name=name)
