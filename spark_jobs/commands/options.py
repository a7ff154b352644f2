"""Options and values that the jobs' commands share."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from app.cli.context import CommandContext
from app.cli.errors import CommandError
from app.cli.param_types import TIME
from app.config.errors import BadValue
from app.config.fields.field_types import Duration, FieldType, Size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

C = TypeVar("C", bound=Callable[..., Any])


class Word(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A value as the settings have it, such as a duration or a size; `scale` times as large."""

    def __init__(self, name: str, kind: FieldType[Any], scale: int = 1) -> None:
        self.name = name
        self._kind, self._scale = kind, scale

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """What is meant."""
        try:
            return value if isinstance(value, int) else int(self._kind.parse(value) * self._scale)
        except BadValue as error:
            self.fail(f"{value!r} {error.problem}; {error.hint}", param, ctx)


_MINUTE, _DAY = 60_000, 86_400_000  # milliseconds
PERIOD = Word("duration", Duration(days=True), 1000)  # milliseconds
BYTES = Word("size", Size(1, 2**62))


def listing_options(command: C) -> C:
    """Where the bucket's listing comes from; a command gives them to `listed`."""
    for option in (
        click.option(
            "--inventory",
            default="",
            metavar="PATH",
            help="A report of S3 Inventory instead: its manifest.json, a path or an s3:// URL.",
        ),
        click.option("--listed-at", type=TIME, help="When that listing was begun, such as 2026-11-21T02:00:00Z."),
        click.option(
            "--listing", default="", metavar="PATH", help="A listing in a file instead: `mc ls --json`, or Parquet."
        ),
        click.option(
            "--versions/--no-versions", default=None, help="List versions too; else as the bucket's setting says."
        ),
        click.option(
            "--endpoint", default="", metavar="URL", help="Where the bucket is; else AWS_ENDPOINT_URL_S3 says."
        ),
    ):
        command = option(command)
    return command


def api_options(command: C) -> C:
    """How events are posted."""
    for option in (
        click.option("--url", envvar="BUCKETWIRE_URL", default="", help="The API; else BUCKETWIRE_LISTEN says."),
        click.option("--rate", type=click.FloatRange(1), default=1000.0, show_default=True, help="Events in a second."),
    ):
        command = option(command)
    return command


def grace_option(command: C) -> C:
    """How long an event may be on its way; a command gives it to `grace`."""
    option = click.option(
        "--grace", type=PERIOD, show_default="60s; 1d with --inventory", help="Leave out objects younger than this."
    )
    return option(command)


def grace(given: int | None, inventory: str) -> int:
    """The milliseconds that are meant: an inventory may lack what was written or removed not long before it."""
    return given if given is not None else _DAY if inventory else _MINUTE


def listed(listing: str, listed_at: int | None, inventory: str, endpoint: str) -> dict[str, Any]:
    """What a `Source` is to know of them.

    Raises `click.UsageError` where they do not belong together, `BadListing`, and what S3 raises.
    """
    if bool(listing) != bool(listed_at):
        raise click.UsageError("--listing and --listed-at belong together: what came after it must be left alone")
    if not inventory:
        return {"listing": listing, "listed_at": listed_at or 0}
    if listing:
        raise click.UsageError("--inventory and --listing both say where the listing is; give one of them")
    try:
        from spark_jobs.listings.inventory import manifest  # noqa: PLC0415 - --help needs no Spark
    except ImportError as missing:
        raise not_installed(missing) from None
    report = manifest(inventory, endpoint)
    return {"inventory": report, "listed_at": report.begun}


@contextmanager
def spark(shell: CommandContext, name: str) -> "Iterator[SparkSession]":
    """The session of a job, as the service's settings have it. Raises `CommandError` where Spark is not installed."""
    try:
        from spark_jobs.session import session  # noqa: PLC0415 - --help needs no Spark
    except ImportError as missing:
        raise not_installed(missing) from None
    settings = shell.settings
    with session(name, master=settings.spark_master, jars=settings.spark_jars, memory=settings.spark_memory) as made:
        yield made


def not_installed(missing: ImportError) -> CommandError:
    """What to say where a job's libraries are not there."""
    return CommandError(f"{missing.name} is not installed; it comes with: pip install 'bucketwire[spark]'")


def api_place(shell: CommandContext, url: str) -> tuple[str, str]:
    """The API's URL, and the token for it."""
    return url or shell.settings.api_url, os.environ.get("BUCKETWIRE_TOKEN", "")
