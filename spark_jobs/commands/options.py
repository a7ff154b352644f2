"""Options that the jobs' commands share, and the values that they stand for. Importing it needs no Spark."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

import click

from app.cli_common import CommandError
from app.cli_common.context import ServiceContext, pass_context
from app.cli_common.param_types import TARGET, TIME, ParsedParam
from app.config.bucket_settings import BucketSettings
from app.config.errors import BadValue
from app.config.fields.field_types import Duration, FieldType, Size
from app.config.settings import Settings
from app.listings.inventory import manifest
from app.listings.limits import RepairLimits
from app.outbox.reconcile.runs import check_prefix
from app.release import install_command
from spark_jobs import connectors, errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

C = TypeVar("C", bound=Callable[..., Any])
Option = Callable[[Callable[..., Any]], Callable[..., Any]]

_MINUTE, _DAY = 60_000, 86_400_000  # milliseconds


class SettingParam(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A value written as in the settings, such as a duration or a size, multiplied by `scale`."""

    def __init__(self, name: str, field_type: FieldType[Any], scale: int = 1) -> None:
        self.name = name
        self._field_type, self._scale = field_type, scale

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the option's text."""
        try:
            return value if isinstance(value, int) else int(self._field_type.parse(value) * self._scale)
        except BadValue as error:
            self.fail(f"{value!r} {error.problem}; {error.hint}", param, ctx)


PERIOD = SettingParam("duration", Duration(), 1000)  # milliseconds
PREFIX = ParsedParam("prefix", check_prefix)
BYTES = SettingParam("size", Size(1, 2**62))


class JobContext(ServiceContext):
    """The service as a job knows it, whose secrets no error of the job contains."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(as_json=as_json)
        errors.forget()

    @cached_property
    def settings(self) -> Settings:
        """The service's settings. Raises `BadSettings`."""
        settings = super().settings
        errors.remember(settings)
        return settings


with_context = pass_context(JobContext)
target_option = click.option("--target", type=TARGET, required=True, help="The target, as type:name or ARN.")
url_option = click.option(
    "--url", envvar="BUCKETWIRE_URL", default="", help="The API's URL; by default that of BUCKETWIRE_LISTEN."
)
grace_option = click.option(
    "--grace",
    type=PERIOD,
    show_default="60s; 1d with --inventory",
    help="Ignore objects younger than this.",
)


@dataclass(frozen=True, slots=True)
class ListingOptions:
    """Where a bucket's listing comes from, as the options say. `listed_at` is milliseconds since 1970."""

    endpoint: str
    versions: bool | None
    listing: str
    listed_at: int | None
    listing_of: str
    inventory: str
    prefix: str

    def source(self, bucket: str, access: BucketSettings) -> dict[str, Any]:
        """Return the fields of a `ListingSource`; `access` is how the service's settings of the bucket say to list it.

        Raises `click.UsageError` where the options contradict each other, `BadListing`, and what S3 raises.
        """
        errors.remember(access)
        if self.listing_of and not self.listing:
            raise click.UsageError("--listing-of says what the file of --listing is; give both, or neither")
        if bool(self.listing) != bool(self.listed_at):
            raise click.UsageError(
                "--listing and --listed-at belong together: objects that changed after the listing must be left alone"
            )
        if self.endpoint and access.endpoint and self.endpoint.rstrip("/") != access.endpoint.rstrip("/"):
            raise click.UsageError(
                f"the settings of {bucket} say that it is at {access.endpoint}, and --endpoint says {self.endpoint}; "
                "leave --endpoint out, or change the settings (`bucketwire bucket set`)"
            )
        fields = {
            "bucket": bucket,
            "endpoint": self.endpoint,
            "versions": self.versions,
            "access": access,
            "prefix": self.prefix,
        }
        if not self.inventory:
            return fields | {"listing": self.listing, "listed_at": self.listed_at or 0, "listing_of": self.listing_of}
        if self.listing:
            raise click.UsageError("--inventory and --listing exclude each other; give one of them")
        with spark_imports():
            from spark_jobs.listings.s3_listing import Bucket  # noqa: PLC0415 - --help needs no Spark
        report = manifest(self.inventory, lambda name: Bucket.from_boto3(name, self.endpoint, access).client())
        return fields | {"inventory": report, "listed_at": report.begun}

    def grace(self, given: int | None) -> int:
        """Return the grace period (ms): an inventory may lack what was written or removed shortly before it."""
        return given if given is not None else _DAY if self.inventory else _MINUTE


def listing_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a bucket's listing; the command gets them as `listing`, a `ListingOptions`."""

    def command(*arguments: Any, **options: Any) -> Any:
        listing = ListingOptions(**{name: options.pop(name) for name in ListingOptions.__dataclass_fields__})
        return function(*arguments, listing=listing, **options)

    return _with(
        update_wrapper(command, function),
        click.option(
            "--endpoint",
            default="",
            metavar="URL",
            help="The S3 endpoint; else that of the bucket's settings, or AWS_ENDPOINT_URL_S3.",
        ),
        click.option(
            "--prefix", type=PREFIX, default="", help="Only the keys that begin with this; the listing may have others."
        ),
        click.option(
            "--versions/--no-versions", default=None, help="List versions; by default if the bucket is versioned."
        ),
        click.option(
            "--listing",
            default="",
            metavar="PATH",
            help="A listing of `mc ls --json`, `aws s3api list-objects-v2` or `rclone lsjson`, in Parquet or CSV.",
        ),
        click.option(
            "--listing-of",
            default="",
            metavar="BUCKET[/PREFIX]",
            help="Of what that listing is, where it does not say so itself: those of aws and rclone do not.",
        ),
        click.option("--listed-at", type=TIME, help="When that listing was started, such as 2026-11-21T02:00:00Z."),
        click.option(
            "--inventory",
            default="",
            metavar="PATH",
            help="Read a report of S3 Inventory: its manifest.json, or the folder of the newest; a path or s3:// URL.",
        ),
    )


def limit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that limit repairs; the command gets them as `limits`, a `RepairLimits`."""

    def command(
        *arguments: Any, max_repairs: int, max_removals: float, max_creations: float, rate: float, **options: Any
    ) -> Any:
        limits = RepairLimits(
            max_repairs=max_repairs, max_removals=max_removals, max_creations=max_creations, rate=rate
        )
        return function(*arguments, limits=limits, **options)

    return _with(
        update_wrapper(command, function),
        click.option(
            "--max-repairs",
            type=click.IntRange(0),
            default=100_000,
            show_default=True,
            help="Repair at most this many differences in this run.",
        ),
        click.option(
            "--max-removals",
            type=click.FloatRange(0, 100),
            default=10.0,
            show_default=True,
            help="Remove at most this percentage of the target's rows; if more would go, remove none. Ten rows may "
            "always go, unless it is 0.",
        ),
        click.option(
            "--max-creations",
            type=click.FloatRange(0),
            default=100.0,
            show_default=True,
            help="Create at most this percentage of the target's rows; if more are missing, create none. 10,000 rows "
            "may always be created, unless it is 0.",
        ),
        click.option("--rate", type=click.FloatRange(1), default=1000.0, show_default=True, help="Repairs per second."),
    )


def api_options(command: C) -> C:
    """Add the options that say where and how fast events are posted."""
    rate = click.option(
        "--rate", type=click.FloatRange(1), default=1000.0, show_default=True, help="Events per second."
    )
    return rate(url_option(command))


def _with(command: Callable[..., Any], *options: Option) -> Callable[..., Any]:
    """Add options in the order in which `--help` shows them."""
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def spark_imports() -> Iterator[None]:
    """Import Spark's libraries inside; raises `CommandError` if they are not installed."""
    try:
        yield
    except ImportError as error:
        raise CommandError(f"{error.name} is not installed; install it with: {install_command('spark')}") from None


@contextmanager
def spark_session(
    context: ServiceContext, name: str, libraries: Sequence[str] = connectors.DRIVERS
) -> "Iterator[SparkSession]":
    """Open a job's Spark session by the service's settings. Raises `CommandError` if Spark is not installed."""
    with spark_imports():
        from spark_jobs.session import session  # noqa: PLC0415 - --help needs no Spark
    with session(name, **_session_options(context), libraries=libraries) as spark:
        yield spark


def launch_spark(
    context: ServiceContext, name: str, libraries: Sequence[str] = connectors.DRIVERS, *, is_short: bool = False
) -> Callable[[], None]:
    """Start the JVM of a session of that name in the background: it takes as long as what is imported meanwhile.

    Call what is returned after the result: it keeps an archive of Spark's classes. Raises `CommandError` if Spark is
    not installed.
    """
    with spark_imports():
        from spark_jobs.session import launch  # noqa: PLC0415 - as above
    cache = context.settings.folder / "cache"
    return launch(name, **_session_options(context), libraries=libraries, is_short=is_short, cache=cache)


def _session_options(context: ServiceContext) -> dict[str, Any]:
    settings = context.settings
    return {"master": settings.spark_master, "jars": settings.spark_jars, "memory": settings.spark_memory}


def api_login(context: ServiceContext, url: str) -> tuple[str, str]:
    """Return the API's URL, and the token for it."""
    return url or context.settings.api_url, os.environ.get("BUCKETWIRE_TOKEN", "")
