"""`bucketwire apply`: apply the targets and rules declared in a file."""

from collections.abc import Mapping
from typing import IO, Any

import click

from app.cli.commands.config import show_api, show_targets
from app.cli.context import CommandContext, with_api
from app.cli_common.output import count_noun, printable
from app.manifest.document import parse_manifest, read_yaml, schema
from app.rules.filters import parse_filters


@click.command()
@click.option("-f", "--file", "source", type=click.File("rb"), help="YAML or JSON file; - is standard input.")
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@click.option("--prune", is_flag=True, help="Also remove the targets and rules that the file does not declare.")
@click.option(
    "--force", is_flag=True, help="With --prune: also remove targets with undelivered events or dead letters."
)
@click.option("--schema", "show_schema", is_flag=True, help="Print the file's JSON Schema, for editors, instead.")
@with_api
def apply(
    context: CommandContext, source: IO[bytes] | None, dry_run: bool, prune: bool, force: bool, show_schema: bool
) -> None:
    """Apply the targets and rules declared in a file, all of it or nothing. Applying it again changes nothing.

    A target is declared as a whole: a key that is left out gets its default. Targets and rules that the file does not
    declare are kept, unless --prune is given.
    """
    if show_schema:
        context.json(schema())
        return
    if source is None:
        raise click.UsageError("name the file: -f bucketwire.yaml")
    if force and not prune:
        raise click.UsageError("--force has an effect only with --prune")
    document = read_yaml(source.read())
    declared = parse_manifest(document)  # the file's mistakes are found before anything is sent
    body = document if isinstance(document, Mapping) else {}
    plan = context.api.change("POST", "/v1/declaration", body, dry_run=dry_run, prune=prune, force=force)
    if context.as_json:
        context.json(plan)
        return
    show_targets(plan)
    for target in plan["targets_removed"]:
        click.echo(f"{target}: removed")
    for sign, member in (("-", "rules_removed"), ("+", "rules_added")):
        for rule in plan[member]:
            click.echo(f"{sign} rule: {printable(format_rule(rule))}")
    show_api(plan, declared=bool(declared.api))
    if not any(plan[name] for name in ("targets_removed", "rules_added", "rules_removed", "api")) and not any(
        target["new"] or target["changes"] for target in plan["targets"]
    ):
        click.echo("no changes: everything is as declared")
    elif dry_run:
        click.echo("nothing was changed: --dry-run")
    left = plan["not_declared"]
    if left["targets"] or left["rules"]:
        click.echo(
            f"not declared and left as they are: {count_noun(len(left['targets']), 'target')}, "
            f"{count_noun(left['rules'], 'rule')}; --prune removes them"
        )


def format_rule(rule: Mapping[str, Any]) -> str:
    """Format a rule in one line."""
    filters = [f"{name}={rule[name]}" for name in ("prefix", "suffix") if rule[name]] + parse_filters(rule).words
    return " ".join([rule["bucket"], ",".join(rule["events"]), *filters, "->", rule["target"]])
