"""`bucketwire up`: run the whole service in one process group."""

import asyncio
import importlib.metadata
import itertools
import json
import os
import shlex
import shutil
import sys
from contextlib import closing
from pathlib import Path

import click

from app import folders, logs
from app.asked_servers import problem_of
from app.cli import main
from app.cli.commands.processes import PRELOADED, check_schema, check_spark, say
from app.cli_common import CommandError
from app.cli_common.context import ServiceContext
from app.config.settings import Settings
from app.folders import make_private
from app.outbox.engine.database import DatabaseUnavailable
from app.outbox.migration import migrate
from app.outbox.reconcile.schedule import Schedule
from app.outbox.sources.rows import any_by_spark, any_source
from app.outbox.tokens import check_listen
from app.supervisor import embedded_redis, start
from app.supervisor.fork_server import ForkServer
from app.supervisor.start import SAMPLE
from app.supervisor.supervisor import Supervisor, broker, puller, reconciler, service

_EXAMPLE = Path(__file__).parents[3] / "examples" / "event.json"  # in a checkout; a wheel does not contain it
_INLINE_EXAMPLE = (
    '{"Records":[{"eventName":"s3:ObjectCreated:Put","eventTime":"2026-11-21T00:33:56.082Z",'
    '"s3":{"bucket":{"name":"photos"},"object":{"key":"cat.jpg","size":11,"sequencer":"18E9E833E5D35CED"}}}]}'
)
_INTERVAL = 2  # seconds between two checks for new sources and schedules
_CHECKS_PER_TRIM = 5  # of the sample, which grows for 10 s in between; each trim opens a connection


@click.command()
@click.option(
    "--concurrency", default=2, show_default=True, type=click.IntRange(1, 256), help="Processes that deliver."
)
def up(concurrency: int) -> None:
    """Run the whole service: API, beat, workers, Flower, and an embedded Redis unless BUCKETWIRE_BROKER_URL is set.

    A worker that pulls is added when there is a source, and a Spark worker when a target has a schedule of
    reconciliations, or the Iceberg tables have one. A process that dies is restarted. Ctrl-C stops everything. Log
    files are in the data folder's log/.
    """
    settings = ServiceContext().settings
    if warning := make_private(settings.folder):
        say(settings.log_format, warning, "WARNING")
    (settings.folder / "log").mkdir(exist_ok=True)
    lock = start.lock_folder(settings.folder)
    if not settings.listen.port:
        os.environ["BUCKETWIRE_LISTEN"] = str(settings.listen._replace(port=start.free_port()))
        settings = ServiceContext().settings
    start.check_address(settings.listen)
    try:
        forks = ForkServer(PRELOADED, main)
    except OSError:
        forks = None
    asyncio.run(_Service(settings, concurrency).run(lock, forks))
    say(settings.log_format, "all ended")


class _Service:
    """One run of the whole service."""

    def __init__(self, settings: Settings, concurrency: int) -> None:
        self._settings = settings
        self._concurrency = concurrency
        self._sample = False
        self._arns: list[str] = []

    async def run(self, lock: int, forks: ForkServer | None) -> None:
        """Run until a signal requests the end; the lock is held until the last process has ended."""
        folder = self._settings.folder / "log"
        await Supervisor(folder, self._say, held=[lock], repeat=self._repeat, forks=forks).run(self._start)

    async def _start(self, supervisor: Supervisor) -> None:
        """Start all processes in order, print their addresses, and then start the reconciler when it is needed."""
        settings = self._settings
        if settings.embedded_broker:
            supervisor.keep([broker(settings)])
            await start.until(lambda: embedded_redis.answers(settings), 15, "the embedded Redis did not answer")
        await asyncio.to_thread(self._prepare)
        flower = start.remembered_port(settings.folder / "flower.port")
        # With one worker on one machine the API can serve its metrics too, unless they have their own address.
        own = settings.metrics_listen.host or os.environ.get(folders.VARIABLE)
        shared = {} if own else {folders.VARIABLE: str(folders.fresh_folder(settings.folder, "up"))}
        supervisor.keep(
            service(concurrency=self._concurrency, flower_port=flower, flower_url=settings.flower_url, shared=shared)
        )
        await start.until(
            lambda: not problem_of(settings.api_url),
            60,
            f"the API did not answer (see {settings.folder}/log/api.log)",
        )
        self._greet(flower)
        reconciles = pulls = False
        with closing(ServiceContext()) as context:  # whose connection is kept
            for check in itertools.count(1):
                if not (pulls and reconciles):
                    has_source, is_scheduled = await asyncio.to_thread(self._read_needs, context)
                    if has_source and not pulls:
                        pulls = True
                        supervisor.keep([puller()])
                    if is_scheduled and not reconciles:
                        reconciles = True
                        self._reconcile(supervisor)
                await asyncio.sleep(_INTERVAL)
                if self._sample and check % _CHECKS_PER_TRIM == 0:
                    await asyncio.to_thread(embedded_redis.trim_sample, settings)

    def _read_needs(self, context: ServiceContext) -> tuple[bool, bool]:
        """Return whether there is a source, and whether anything has a schedule of its own on Spark.

        While the database is unavailable only the schedule of the tables is known.
        """
        has_tables = bool(self._settings.tables_schedule)
        try:
            database = context.database
            return any_source(database), has_tables or Schedule(database).exists() or any_by_spark(database)
        except (CommandError, *DatabaseUnavailable):
            return False, has_tables

    def _reconcile(self, supervisor: Supervisor) -> None:
        """Start the worker that reconciles, or print what it needs."""
        try:
            check_spark()
        except CommandError as error:
            self._say(f"scheduled reconciliations wait for a `bucketwire worker --only spark`: {error}")
        else:
            supervisor.keep([reconciler()])

    def _prepare(self) -> None:
        context = ServiceContext()
        migrate(context.bare_database, partitions=self._settings.partitions)
        check_schema(context)
        check_listen(self._settings, context.database)
        for problem in start.sync_environment(context.registry, os.environ):
            self._say(f"environment: {problem}")
        self._sample = start.add_sample(context.registry, self._settings)
        if not self._settings.embedded_broker and any(
            stored.origin == "sample" for stored in context.registry.targets()
        ):
            self._say(f"{SAMPLE} used the embedded Redis; remove it: bucketwire target rm {SAMPLE} --force")
        self._arns = [
            stored.target.arn(self._settings.region) for stored in context.registry.targets() if stored.enabled
        ]
        context.close()

    def _greet(self, flower: int) -> None:
        settings = self._settings
        if settings.log_format == "text":
            click.echo(greeting(settings, flower, self._arns, sample=self._sample))
            return
        urls = {"api": settings.api_url, "flower": f"http://127.0.0.1:{flower}"}
        line = logs.line(f"runs in {settings.folder}", logs=f"{settings.folder}/log", arns=self._arns, **urls)
        click.echo(line, err=True)

    def _say(self, text: str) -> None:
        say(self._settings.log_format, text)

    def _repeat(self, part: str, line: str) -> None:
        """Print a process's warning; in JSON the line names the process."""
        if self._settings.log_format == "text":
            self._say(f"{part}: {line}")
        elif (members := logs.members(line)) is not None:
            click.echo(json.dumps({**members, "part": part}), err=True)
        else:
            click.echo(logs.line(line, "WARNING", part=part), err=True)


def greeting(settings: Settings, flower: int, arns: list[str], *, sample: bool) -> str:
    """Return the text to print at startup: the addresses, a first command, and what to configure next."""
    base = settings.api_url
    post = f"{base}/v1/events"
    data = f"@{_relative(_EXAMPLE)}" if _EXAMPLE.exists() else _INLINE_EXAMPLE
    lines = [
        "",
        f"Bucketwire {importlib.metadata.version('bucketwire')} runs in {settings.folder}",
        "",
        f"  API          {base}   described at {base}/openapi.json",
        f"  Console      {base}/console/",
        f"  Flower       http://127.0.0.1:{flower}",
        f"  Logs         {settings.folder}/log",
        f"  SQS ARNs:    {'  '.join(arns) or 'none'}",
        "",
        "Post an event:",
        f"  curl -sS {post} -H 'Content-Type: application/json' --data {shlex.quote(data)}",
    ]
    if sample:
        lines += ["See it delivered:", f"  {_command()} sample"]
    else:
        lines += ["See its delivery:", f"  {_command()} status"]
    lines += [
        "",
        "Configure next:",
        f"  in MinIO     MINIO_NOTIFY_WEBHOOK_ENABLE_bw=on MINIO_NOTIFY_WEBHOOK_ENDPOINT_bw={post}",
        "  a target     MINIO_NOTIFY_WEBHOOK_ENABLE_x=on MINIO_NOTIFY_WEBHOOK_ENDPOINT_x=https://… here, or",
        f"               {_command()} target set webhook:x endpoint=https://…",
        f"               {_command()} rule add '*' arn:minio:sqs:{settings.region}:x:webhook --event '*'",
    ]
    if settings.embedded_database:
        lines.append("  a database   BUCKETWIRE_DATABASE_URL=postgresql://user:password@host/bucketwire")
    if settings.embedded_broker:
        lines.append("  a broker     BUCKETWIRE_BROKER_URL=amqp://user:password@host or redis://host")
    return "\n".join([*lines, "", "Ctrl-C stops everything.", ""])


def _command() -> str:
    """Return the command by which this process was started as `bucketwire`."""
    installed = shutil.which("bucketwire")
    called = Path(sys.argv[0])
    if installed is None or (called.name == "bucketwire" and called.exists() and not called.samefile(installed)):
        return _relative(called) if called.name == "bucketwire" else f"{sys.executable} -m bucketwire"
    return "bucketwire"


def _relative(path: Path) -> str:
    here = Path.cwd()
    return str(path.absolute().relative_to(here) if path.absolute().is_relative_to(here) else path)
