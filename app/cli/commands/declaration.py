"""`bucketwire apply` and `bucket …`: apply what a file declares, and say where buckets are for jobs that list them."""

from collections.abc import Mapping
from typing import IO, Any

import click

from app.cli.commands.config import planned_settings, set_keys, show_api, show_settings
from app.cli.context import CommandContext, named_path, with_api
from app.cli.groups import Group
from app.cli_common.output import printable
from app.cli_common.param_types import BUCKET_ID, KEY_VALUE
from app.config.bucket_settings import BucketId
from app.manifest.document import parse_manifest, read_yaml, schema
from app.quantities import count_noun
from app.resources.plan import BucketSettings
from app.rules.filters import parse_filters

_PATH = "/v1/buckets"


@click.command()
@click.option("-f", "--file", "source", type=click.File("rb"), help="YAML or JSON file; - is standard input.")
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@click.option(
    "--prune",
    is_flag=True,
    help="Also remove what the file does not declare: targets, sources, buckets and rules.",
)
@click.option(
    "--force",
    is_flag=True,
    help="With --prune: also remove targets with undelivered events or dead letters, sources with rejected messages.",
)
@click.option("--schema", "show_schema", is_flag=True, help="Print the file's JSON Schema, for editors, instead.")
@with_api
def apply(
    context: CommandContext, source: IO[bytes] | None, dry_run: bool, prune: bool, force: bool, show_schema: bool
) -> None:
    """Apply the targets, sources, buckets and rules of a file, all of it or nothing. Applied again, it changes nothing.

    What is declared is declared as a whole: a key that is left out gets its default. What the file does not declare is
    kept, unless --prune is given.
    """
    if show_schema:
        context.json(schema())
        return
    if source is None:
        raise click.UsageError("name the file: -f bucketwire.yaml")
    if force and not prune:
        raise click.UsageError("--force has an effect only with --prune")
    document = read_yaml(source.read())
    declared = parse_manifest(document)  # its problems are found again where they are found with all others
    body = document if isinstance(document, Mapping) else {}
    plan = context.api.change("POST", "/v1/declaration", body, dry_run=dry_run, prune=prune, force=force)
    if context.as_json:
        context.json(plan)
        return
    show_settings(plan)
    for name in (*plan["targets_removed"], *plan["sources_removed"], *plan["buckets_removed"]):
        click.echo(f"{name}: removed")
    for sign, member in (("-", "rules_removed"), ("+", "rules_added")):
        for rule in plan[member]:
            click.echo(f"{sign} rule: {printable(format_rule(rule))}")
    show_api(plan, declared=bool(declared.api))
    removed_or_added = ("targets_removed", "sources_removed", "buckets_removed", "rules_added", "rules_removed", "api")
    if not any(plan[name] for name in removed_or_added) and not any(
        planned["new"] or planned["changes"] for _, planned in planned_settings(plan)
    ):
        click.echo("no changes: everything is as declared")
    elif dry_run:
        click.echo("nothing was changed: --dry-run")
    left = plan["not_declared"]
    if left["targets"] or left["sources"] or left["buckets"] or left["rules"]:
        counts = [count_noun(len(left["targets"]), "target"), count_noun(left["rules"], "rule")]
        for noun in ("bucket", "source"):
            counts[1:1] = [count_noun(len(left[f"{noun}s"]), noun)] if left[f"{noun}s"] else []
        click.echo(f"not declared and left as they are: {', '.join(counts)}; --prune removes them")


def format_rule(rule: Mapping[str, Any]) -> str:
    """Format a rule in one line."""
    filters = [f"{name}={rule[name]}" for name in ("prefix", "suffix") if rule[name]] + parse_filters(rule).words
    return " ".join([rule["bucket"], ",".join(rule["events"]), *filters, "->", rule["target"]])


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
