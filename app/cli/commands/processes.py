"""`bucketwire api|worker|beat|flower`: run one process of the service, for production.

Each command replaces itself by its program (gunicorn, celery), so that signals and exit codes are the program's.
"""

import os
import re
import runpy
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from importlib.util import find_spec

import click

from app import folders, logs, telemetry
from app.broker import SERVICE_QUEUE, SOURCES_QUEUE, SPARK_QUEUE
from app.cli.errors import describe_exception
from app.cli_common import CommandError
from app.cli_common.context import ServiceContext
from app.cli_common.output import printable
from app.cli_common.param_types import parse_served_targets
from app.config.networks import is_loopback
from app.config.settings import Settings
from app.folders import create_files_for_this_user_only
from app.outbox.engine.database import DatabaseUnavailable
from app.release import install_command
from app.supervisor import fork_server
from app.supervisor.start import sync_environment

# The link from app to workers: a name that celery imports, so that nothing here does.
CELERY = ("celery", "-A", "workers.celery")
# What the processes below import, for a fork server; in order, so that a missing one of the last costs little.
PRELOADED = (
    "workers.tasks", "celery.bin.celery", "celery.apps.worker", "celery.apps.beat", "celery.concurrency.prefork",
    "celery.concurrency.solo", "gunicorn.app.wsgiapp", "app.server.worker_imports", "flower.app",
)  # fmt: skip
TARGET_TEST = ("workers.target_test",)  # likewise only a name here
SOURCE_TEST = ("workers.source_test",)  # likewise
FLOWER = ("workers.flower_process", *CELERY[1:])  # likewise


@click.command()
@click.option("--workers", type=click.IntRange(1, 64), help="Number of processes. [default: 2]")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads per process. [default: 32]")
def api(workers: int | None, threads: int | None) -> None:
    """Run the API, served by gunicorn, on BUCKETWIRE_LISTEN."""
    from app.server.gunicorn_options import command  # noqa: PLC0415 - 14 MB that `up` and the workers do not need

    context = ServiceContext()
    form = context.settings.log_format
    try:
        check_schema(context)
        for problem in sync_environment(context.registry, os.environ):
            say(form, f"environment: {problem}", "WARNING")
        say(form, arns_line(context))
    except (CommandError, *DatabaseUnavailable) as error:
        # The API starts even so: it answers 503, or spools events, until the database is available.
        say(form, f"the environment's targets were not stored: {describe_exception(error)}", "WARNING")
    finally:
        context.close()
    options = [] if workers is None else ["--workers", str(workers)]
    options += [] if threads is None else ["--threads", str(threads)]
    program, *rest = command()
    exec_process([program, *options, *rest])


def _check_worker_name(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """Return the name. Celery takes `@` as the start of the host, and `%` as a format."""
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}", name):
        raise click.BadParameter("is not up to 64 letters, digits, or any of . _ + -", context, parameter)
    return name


@click.command()
@click.option("--targets", metavar="TARGETS", help="Serve only these, such as kafka,webhook:audit. [default: all]")
@click.option(
    "--only", type=click.Choice(["drain", "targets", "sources", "spark"]),
    help="drain: find due work, never deliver; targets: deliver, never drain; sources: pull events from sources; "
    "spark: run scheduled reconciliations, one at a time. [default: drain and targets]",
)  # fmt: skip
@click.option(
    "--concurrency", type=click.IntRange(1, 256), help="Processes that deliver. [default: the number of processors]"
)
@click.option(
    "--name", callback=_check_worker_name, metavar="NAME",
    help="The worker's name in Flower and in logs, if two on a host serve the same. [default: what it serves]",
)  # fmt: skip
@click.option("--log-level", default="INFO", show_default=True, help="DEBUG, INFO, WARNING or ERROR.")
def worker(targets: str | None, only: str | None, concurrency: int | None, name: str | None, log_level: str) -> None:
    """Run a worker: it drains the event log, delivers to targets, or both; or it pulls events, or reconciles."""
    settings = _load_settings()
    delivers = only not in ("drain", "sources", "spark")
    if not delivers and (targets or concurrency):
        raise click.UsageError(f"--only {only} delivers nothing, so --targets and --concurrency have no effect")
    if only == "spark":
        check_spark()
    with suppress(CommandError, *DatabaseUnavailable), closing(ServiceContext()) as context:  # it waits for these
        check_schema(context)
    environment = {
        "BUCKETWIRE_WORKER_TARGETS": "" if not delivers else parse_served_targets(targets) if targets else "*"
    }
    has_metrics = bool(settings.metrics_listen.host) or telemetry.exports_metrics()
    if has_metrics and (delivers or only == "drain") and not os.environ.get(folders.VARIABLE):
        try:
            environment[folders.VARIABLE] = str(folders.own_folder(settings.folder))
        except OSError as error:
            problem = f"cannot create a metrics folder in {settings.folder}: {error.strerror}"
            if settings.metrics_listen.host:
                raise CommandError(problem) from None
            say(settings.log_format, f"the worker's metrics are not exported: {problem}", "WARNING")
    argv = [*celery(settings), "worker", "--loglevel", log_level, "--without-gossip", "--without-mingle", "--events"]
    argv += ["--hostname", f"{name or worker_name(only, targets)}@%h"]
    if only == "drain":
        argv += ["--queues", SERVICE_QUEUE, "--pool", "solo"]
    elif only == "sources":
        # Its own queue is empty: threads beside the pool pull. But it is a worker as the others, for Flower too.
        argv += ["--queues", SOURCES_QUEUE, "--pool", "solo"]
        environment["BUCKETWIRE_WORKER_SOURCES"] = "*"
    elif only == "spark":
        # A thread, so that a worker that is stopped can end its job; the job has no time limit.
        argv += ["--queues", SPARK_QUEUE, "--pool", "threads", "--concurrency", "1"]
    else:
        argv += [
            "--exclude-queues",
            ",".join([SPARK_QUEUE, SOURCES_QUEUE, *([SERVICE_QUEUE] if only == "targets" else [])]),
        ]
    if concurrency:
        argv += ["--concurrency", str(concurrency)]
    exec_process(argv, environment)


@click.command()
@click.option("--log-level", default="INFO", show_default=True, help="DEBUG, INFO, WARNING or ERROR.")
def beat(log_level: str) -> None:
    """Run the beat scheduler, which triggers the drain. A second instance is harmless."""
    exec_process([*celery(_load_settings()), "beat", "--loglevel", log_level])


@click.command()
@click.option(
    "--listen", default="127.0.0.1:5555", show_default=True, metavar="HOST:PORT", help="Address to listen on."
)
def flower(listen: str) -> None:
    """Run Flower, which shows workers and tasks.

    It is read-only unless FLOWER_READ_ONLY=false. On a loopback address its API needs no password, and it answers only
    requests for this machine's names or for the host of BUCKETWIRE_FLOWER_URL; on any other address
    FLOWER_BASIC_AUTH=user:password is required.
    """
    _load_settings()
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise click.BadParameter(f"{listen!r} is not HOST:PORT", param_hint="--listen")
    environment = {"FLOWER_READ_ONLY": os.environ.get("FLOWER_READ_ONLY") or "true"}
    if is_loopback(host):
        environment["FLOWER_UNAUTHENTICATED_API"] = "true"
    elif not os.environ.get("FLOWER_BASIC_AUTH"):
        raise CommandError(
            f"Flower on {listen} would be open to the network: set FLOWER_BASIC_AUTH=user:password, "
            "or listen on 127.0.0.1"
        )
    exec_process([*FLOWER, "flower", f"--address={host.strip('[]')}", f"--port={port}"], environment)


def check_schema(context: ServiceContext) -> None:
    """Say that the outbox is of a later version, with which this one works.

    Raises `SchemaRefused` if it does not, and what opening the outbox raises.
    """
    if context.database and context.schema.note:
        say(context.settings.log_format, f"the outbox database {context.schema.note}")


def arns_line(context: ServiceContext) -> str:
    """Return the ARNs of the enabled targets, as MinIO prints them at startup."""
    arns = [stored.target.arn(context.settings.region) for stored in context.registry.targets() if stored.enabled]
    return f"SQS ARNs: {'  '.join(arns) or 'none'}"


def worker_name(only: str | None, targets: str | None) -> str:
    """Return a worker's name for Flower: its role, and its targets unless it serves all."""
    return "-".join(filter(None, [only or "worker", (targets or "").replace(",", "+").replace(":", ".")]))


def celery(settings: Settings) -> list[str]:
    """Return the start of a Celery command; with JSON logs Celery prints no banner."""
    program, *rest = CELERY
    return [program, *(["--quiet"] if settings.log_format == "json" else []), *rest]


def say(form: logs.Form, text: str, level: str = "INFO") -> None:
    """Write a line in the format of the logs, before logging is configured."""
    click.echo(logs.line(text, level) if form == "json" else printable(text), err=True)


def _load_settings() -> Settings:
    """Load the settings here, because the program that is started next would show a stack trace for invalid ones."""
    return ServiceContext().settings


def check_spark() -> None:
    """Raise `CommandError` if Spark or Java is missing."""
    if find_spec("pyspark") is None:
        raise CommandError(f"Spark is not installed; install it: {install_command('spark')}")
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        raise CommandError(
            f"there is no Java in {home}/bin" if home else "Java is not installed; Spark needs Java 17 or newer"
        )


def exec_process(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Replace this process by `python -m` with these arguments; a forked one, which has them imported, runs on.

    `bucketwire.start` gives the module our packages; without `-P` the working directory could replace the libraries.
    """
    create_files_for_this_user_only()
    sys.stdout.flush()
    if fork_server.forked:
        os.environ.update(environment or {})
        sys.argv = list(argv)
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
        sys.exit(0)
    command = [sys.executable, "-P", "-m", "bucketwire.start", *argv]
    os.execve(sys.executable, command, os.environ | (environment or {}))  # noqa: S606 - no shell
