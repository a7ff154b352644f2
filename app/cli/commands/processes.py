"""`bucketwire api|worker|beat|flower`: one part of the service, for production where each runs by itself.

Each becomes the program that does the work (gunicorn, celery), so that signals and exit codes are that program's.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

import click

from app import logs
from app.api.server.gunicorn_options import command
from app.cli.context import CommandContext
from app.cli.errors import describe_exception
from app.cli_common.errors import CommandError
from app.cli_common.output import printable
from app.cli_common.param_types import parse_served_targets
from app.config.networks import is_loopback
from app.config.settings import Settings
from app.outbox.engine.database import DatabaseUnavailable
from app.supervisor import metrics_folder
from app.supervisor.start import sync_environment

# The one seam between app and workers: a name that celery imports, so that nothing here does.
CELERY = ("celery", "-A", "workers.celery")
TARGET_TEST = ("workers.target_test",)  # likewise only a name here
SERVICE_QUEUE = "bucketwire"  # as workers.celery has it; a test keeps them equal
SPARK_QUEUE = "spark"  # likewise


@click.command()
@click.option("--workers", type=click.IntRange(1, 64), help="Processes; 2 unless given.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads of each process; 32 unless given.")
def api(workers: int | None, threads: int | None) -> None:
    """Run the API, served by gunicorn, on BUCKETWIRE_LISTEN."""
    context = CommandContext()
    form = context.settings.log_format
    try:
        for problem in sync_environment(context.registry, os.environ):
            say(form, f"environment: {problem}", "WARNING")
        say(form, arns_line(context))
    except (CommandError, *DatabaseUnavailable) as error:
        # The API starts all the same: it answers 503, or keeps events in its spool folder, until there is a database.
        say(form, f"targets of the environment are not looked at: {describe_exception(error)}", "WARNING")
    finally:
        context.close()
    options = [] if workers is None else ["--workers", str(workers)]
    options += [] if threads is None else ["--threads", str(threads)]
    program, *rest = command()
    exec_process([program, *options, *rest])


@click.command()
@click.option("--targets", metavar="TARGETS", help="Serve only these, such as kafka,webhook:audit. All unless given.")
@click.option(
    "--only", type=click.Choice(["drain", "targets", "spark"]),
    help="drain: look for work and never deliver; targets: deliver and never look; both unless given. "
    "spark: reconcile by schedule, one run at a time.",
)  # fmt: skip
@click.option(
    "--concurrency", type=click.IntRange(1, 256), help="Processes that deliver; as many as processors unless given."
)
@click.option("--log-level", default="INFO", show_default=True, help="DEBUG, INFO, WARNING or ERROR.")
def worker(targets: str | None, only: str | None, concurrency: int | None, log_level: str) -> None:
    """Run a worker: it drains the log, delivers to targets, or both; or it reconciles."""
    settings = _load_settings()
    delivers = only not in ("drain", "spark")
    if not delivers and (targets or concurrency):
        raise click.UsageError(f"--only {only} delivers nothing, so --targets and --concurrency say nothing to it")
    if only == "spark":
        check_spark()
    environment = {
        "BUCKETWIRE_WORKER_TARGETS": "" if not delivers else parse_served_targets(targets) if targets else "*"
    }
    if settings.metrics_listen.host and delivers and not os.environ.get(metrics_folder.VARIABLE):
        try:
            environment[metrics_folder.VARIABLE] = str(metrics_folder.own_folder(settings.folder))
        except OSError as error:
            raise CommandError(f"no folder for figures can be made in {settings.folder}: {error.strerror}") from None
    argv = [*celery(settings), "worker", "--loglevel", log_level, "--without-gossip", "--without-mingle", "--events"]
    argv += ["--hostname", f"{worker_name(only, targets)}@%h"]
    if only == "drain":
        argv += ["--queues", SERVICE_QUEUE, "--pool", "solo"]
    elif only == "spark":
        # A thread: what is asked to end can end its job, and nothing limits the time of it.
        argv += ["--queues", SPARK_QUEUE, "--pool", "threads", "--concurrency", "1"]
    else:
        argv += ["--exclude-queues", f"{SERVICE_QUEUE},{SPARK_QUEUE}" if only == "targets" else SPARK_QUEUE]
    if concurrency:
        argv += ["--concurrency", str(concurrency)]
    exec_process(argv, environment)


@click.command()
@click.option("--log-level", default="INFO", show_default=True, help="DEBUG, INFO, WARNING or ERROR.")
def beat(log_level: str) -> None:
    """Run the clock that has the log drained. One is enough; two do no harm."""
    exec_process([*celery(_load_settings()), "beat", "--loglevel", log_level])


@click.command()
@click.option("--listen", default="127.0.0.1:5555", show_default=True, metavar="HOST:PORT", help="Where it listens.")
def flower(listen: str) -> None:
    """Run Flower, which shows workers and tasks.

    It shows and changes nothing, unless FLOWER_READ_ONLY=false lets it. Its API is open to this machine; on any other
    address it needs FLOWER_BASIC_AUTH=user:password.
    """
    _load_settings()
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise click.BadParameter(f"{listen!r} is no HOST:PORT", param_hint="--listen")
    environment = {"FLOWER_READ_ONLY": os.environ.get("FLOWER_READ_ONLY") or "true"}
    if is_loopback(host):
        environment["FLOWER_UNAUTHENTICATED_API"] = "true"
    elif not os.environ.get("FLOWER_BASIC_AUTH"):
        raise CommandError(
            f"Flower on {listen} could be used by everyone who reaches it: set FLOWER_BASIC_AUTH=user:password, "
            "or listen on 127.0.0.1"
        )
    exec_process([*CELERY, "flower", f"--address={host.strip('[]')}", f"--port={port}"], environment)


def arns_line(context: CommandContext) -> str:
    """The targets that may be named, as MinIO says it at its start."""
    arns = [stored.target.arn(context.settings.region) for stored in context.registry.targets() if stored.enabled]
    return f"SQS ARNs: {'  '.join(arns) or 'none'}"


def worker_name(only: str | None, targets: str | None) -> str:
    """What Flower calls a worker: what it does, and for whom if not for all."""
    return "-".join(filter(None, [only or "worker", (targets or "").replace(",", "+").replace(":", ".")]))


def celery(settings: Settings) -> list[str]:
    """The words that begin a command of Celery's; it greets people only."""
    program, *rest = CELERY
    return [program, *(["--quiet"] if settings.log_format == "json" else []), *rest]


def say(form: logs.Form, text: str, level: str = "INFO") -> None:
    """Write a line in the form of the logs, where nothing logs yet."""
    click.echo(logs.line(text, level) if form == "json" else printable(text), err=True)


def _load_settings() -> Settings:
    """Say here what is wrong with the settings: what is started next would show a stack trace."""
    return CommandContext().settings


def check_spark() -> None:
    """Raise `CommandError` where Spark or its Java is missing."""
    if find_spec("pyspark") is None:
        raise CommandError("Spark is not installed; it comes with: pip install 'bucketwire[spark]'")
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        raise CommandError(
            f"there is no Java in {home}/bin" if home else "there is no Java; Spark needs Java 17 or newer"
        )


def exec_process(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Replace this process by a module's program."""
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", *argv], os.environ | (environment or {}))  # noqa: S606 - no shell
