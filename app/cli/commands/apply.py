"""`bucketwire apply`: apply the targets, sources, buckets and rules declared in a file."""

from collections.abc import Mapping
from typing import IO, Any

import click

from app.cli.commands.config import planned_settings, show_api, show_settings
from app.cli.context import CommandContext, with_api
from app.cli_common.output import printable
from app.manifest.document import parse_manifest, read_yaml, schema
from app.quantities import count_noun
from app.rules.filters import parse_filters


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
