"""`bucketwire bucket …`: say where buckets are, and how the jobs that list them log in."""

import click

from app.cli.client import named_path
from app.cli.commands.config import set_keys
from app.cli.context import CommandContext, with_api
from app.cli.groups import Group
from app.cli_common.param_types import BUCKET_ID, KEY_VALUE
from app.config.bucket_settings import BucketId
from app.resources.bucket import BucketSettings

_PATH = "/v1/buckets"


@click.group(cls=Group)
def bucket() -> None:
    """Say where buckets are, for the jobs that list them.

    That is an endpoint, credentials and a name there. A bucket without settings is listed where boto3's settings on the
    machine of the job say.
    """


@bucket.command()
@with_api
def ls(context: CommandContext) -> None:
    """List the buckets that have settings."""
    none = "no bucket has settings; boto3's settings say where all of them are"
    context.rows(context.api.get(_PATH)["buckets"], BucketSettings.columns, none)


@bucket.command()
@click.argument("which", metavar="BUCKET", type=BUCKET_ID)
@with_api
def show(context: CommandContext, which: BucketId) -> None:
    """Show the settings of a bucket, secrets redacted."""
    shown = context.api.get(_path(which))
    if context.as_json:
        context.json(shown)
    else:
        context.facts({"bucket": shown["name"], "name_in_storage": shown["name_in_storage"], **shown["settings"]})


@bucket.command(name="set")
@click.argument("which", metavar="BUCKET", type=BUCKET_ID)
@click.argument("pairs", metavar="KEY=VALUE...", type=KEY_VALUE, nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@with_api
def set_(context: CommandContext, which: BucketId, pairs: tuple[tuple[str, str], ...], dry_run: bool) -> None:
    """Set where a bucket is; keys that are left out keep their values, an empty value resets to the default.

    The keys are endpoint, bucket (its name there), region, access_key, secret_key, session_token,
    tls_ca, addressing_style and requester_pays.
    The next job that lists the bucket uses them.
    """
    set_keys(context, buckets={which: dict(pairs)}, dry_run=dry_run, lenient=False)


@bucket.command()
@click.argument("which", metavar="BUCKET", type=BUCKET_ID)
@with_api
def rm(context: CommandContext, which: BucketId) -> None:
    """Remove the settings of a bucket; its rules and events stay."""
    context.api.change("DELETE", _path(which))
    context.done(f"removed the settings of {which.name}", name=which.name)


def _path(bucket: BucketId) -> str:
    return named_path(_PATH, bucket.name, f"there are no settings of the bucket {bucket.name}")
