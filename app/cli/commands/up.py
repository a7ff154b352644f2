"""`bucketwire up`: the whole service in one process group."""

import asyncio
import importlib.metadata
import json
import os
import shlex
import shutil
import sys
from contextlib import closing
from pathlib import Path

import click

from app import logs
from app.api.auth import check_listen
from app.cli.commands.processes import check_spark, say
from app.cli.context import CommandContext
from app.cli_common.errors import CommandError
from app.config.settings import Settings
from app.outbox.engine.database import DatabaseUnavailable
from app.outbox.engine.migration import migrate
from app.outbox.reconcile.schedule import Schedule
from app.supervisor import embedded_redis, metrics_folder, start
from app.supervisor.children import broker, reconciler, service
from app.supervisor.embedded_broker import SAMPLE
from app.supervisor.supervisor import Supervisor

_EXAMPLE = Path(__file__).parents[3] / "examples" / "event.json"  # in a checkout; a wheel has none
_SMALL = (
    '{"Records":[{"eventName":"s3:ObjectCreated:Put","eventTime":"2026-11-21T00:33:56.082Z",'
    '"s3":{"bucket":{"name":"photos"},"object":{"key":"cat.jpg","size":11,"sequencer":"18E9E833E5D35CED"}}}]}'
)
_LOOK = 10  # seconds between two looks at what changes while it runs


@click.command()
@click.option(
    "--concurrency", default=2, show_default=True, type=click.IntRange(1, 256), help="Processes that deliver."
)
def up(concurrency: int) -> None:
    """Run everything here: API, beat, workers, Flower, and a Redis of their own unless BUCKETWIRE_BROKER_URL is set.

    A worker on Spark joins them when a target has a schedule of reconciliations. Ctrl-C ends all of it. What dies is
    started again. Logs are in the folder's log/.
    """
    settings = CommandContext().settings
    settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (settings.folder / "log").mkdir(exist_ok=True)
    lock = start.lock_folder(settings.folder)
    if not settings.listen.port:
        os.environ["BUCKETWIRE_LISTEN"] = str(settings.listen._replace(port=start.free_port()))
        settings = CommandContext().settings
    start.check_address(settings.listen)
    asyncio.run(_Service(settings, concurrency).run(lock))
    say(settings.log_format, "all ended")


class _Service:
    """One run of the whole service."""

    def __init__(self, settings: Settings, concurrency: int) -> None:
        self._settings = settings
        self._concurrency = concurrency
        self._sample = False
        self._arns: list[str] = []

    async def run(self, lock: int) -> None:
        """Run until a signal asks for the end; the lock is held until the last process has ended."""
        folder = self._settings.folder / "log"
        await Supervisor(folder, self._say, held=[lock], repeat=self._repeat).run(self._start)

    async def _start(self, supervisor: Supervisor) -> None:
        """Start everything in its order, say where it is, and look after what changes for as long as it runs."""
        settings = self._settings
        if settings.embedded_broker:
            supervisor.keep([broker(settings)])
            await start.until(lambda: embedded_redis.answers(settings), 15, "the embedded Redis did not answer")
        await asyncio.to_thread(self._prepare)
        flower = start.remembered_port(settings.folder / "flower.port")
        # One worker on one machine: the API can tell its figures too, unless they have an address of their own.
        own = settings.metrics_listen.host or os.environ.get(metrics_folder.VARIABLE)
        shared = {} if own else {metrics_folder.VARIABLE: str(metrics_folder.fresh_folder(settings.folder, "up"))}
        supervisor.keep(service(concurrency=self._concurrency, flower_port=flower, shared=shared))
        await start.until(
            lambda: start.api_answers(settings.api_address, secure=bool(settings.tls_cert)),
            60,
            f"the API did not answer (see {settings.folder}/log/api.log)",
        )
        self._greet(flower)
        reconciles = False
        while True:
            if not reconciles and await asyncio.to_thread(self._is_scheduled):
                reconciles = True
                self._reconcile(supervisor)
            await asyncio.sleep(_LOOK)
            if self._sample:
                await asyncio.to_thread(embedded_redis.trim_sample, settings)

    def _is_scheduled(self) -> bool:
        """Whether a target is to be reconciled by schedule; False while nobody can say."""
        try:
            with closing(CommandContext()) as context:
                return Schedule(context.database).exists()
        except (CommandError, *DatabaseUnavailable):
            return False

    def _reconcile(self, supervisor: Supervisor) -> None:
        """Start the worker that reconciles, or say what it lacks."""
        try:
            check_spark()
        except CommandError as error:
            self._say(f"a target has a schedule; its runs wait for a `bucketwire worker --only spark`: {error}")
        else:
            supervisor.keep([reconciler()])

    def _prepare(self) -> None:
        context = CommandContext()
        migrate(context.bare_database, partitions=self._settings.partitions)
        check_listen(self._settings, context.database)
        for problem in start.sync_environment(context.registry, os.environ):
            self._say(f"environment: {problem}")
        self._sample = start.add_sample(context.registry, self._settings)
        if not self._settings.embedded_broker and any(
            stored.origin == "sample" for stored in context.registry.targets()
        ):
            self._say(f"{SAMPLE} was on the embedded Redis; remove it: bucketwire target rm {SAMPLE} --force")
        self._arns = [
            stored.target.arn(self._settings.region) for stored in context.registry.targets() if stored.enabled
        ]
        context.close()

    def _greet(self, flower: int) -> None:
        settings = self._settings
        if settings.log_format == "text":
            click.echo(greeting(settings, flower, self._arns, sample=self._sample))
            return
        places = {"api": settings.api_url, "flower": f"http://127.0.0.1:{flower}"}
        about = logs.line(f"runs in {settings.folder}", logs=f"{settings.folder}/log", arns=self._arns, **places)
        click.echo(about, err=True)

    def _say(self, text: str) -> None:
        say(self._settings.log_format, text)

    def _repeat(self, part: str, line: str) -> None:
        """Print a part's warning, which in JSON becomes a line that names the part."""
        if self._settings.log_format == "text":
            self._say(f"{part}: {line}")
        elif (found := logs.members(line)) is not None:
            click.echo(json.dumps({**found, "part": part}), err=True)
        else:
            click.echo(logs.line(line, "WARNING", part=part), err=True)


def greeting(settings: Settings, flower: int, arns: list[str], *, sample: bool) -> str:
    """What a person needs to know now: where everything is, what to try, what to set next."""
    base = settings.api_url
    post = f"{base}/v1/events"
    data = f"@{_relative(_EXAMPLE)}" if _EXAMPLE.exists() else _SMALL
    lines = [
        "",
        f"Bucketwire {importlib.metadata.version('bucketwire')} runs in {settings.folder}",
        "",
        f"  API          {base}   described at {base}/openapi.json",
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
        lines += ["See where it went:", f"  {_command()} status"]
    lines += [
        "",
        "What to set next:",
        f"  in MinIO     MINIO_NOTIFY_WEBHOOK_ENABLE_bw=on MINIO_NOTIFY_WEBHOOK_ENDPOINT_bw={post}",
        "  a target     MINIO_NOTIFY_WEBHOOK_ENABLE_x=on MINIO_NOTIFY_WEBHOOK_ENDPOINT_x=https://… here, or",
        f"               {_command()} target set webhook:x endpoint=https://…",
        f"               {_command()} event add '*' arn:minio:sqs:{settings.region}:x:webhook --event '*'",
    ]
    if settings.embedded_database:
        lines.append("  a database   BUCKETWIRE_DATABASE_URL=postgresql://user:password@host/bucketwire")
    if settings.embedded_broker:
        lines.append("  a broker     BUCKETWIRE_BROKER_URL=amqp://user:password@host or redis://host")
    return "\n".join([*lines, "", "Ctrl-C ends all of it.", ""])


def _command() -> str:
    """How this person calls `bucketwire`."""
    found = shutil.which("bucketwire")
    called = Path(sys.argv[0])
    if found is None or (called.name == "bucketwire" and called.exists() and not called.samefile(found)):
        return _relative(called) if called.name == "bucketwire" else f"{sys.executable} -m app.cli"
    return "bucketwire"


def _relative(path: Path) -> str:
    here = Path.cwd()
    return str(path.absolute().relative_to(here) if path.absolute().is_relative_to(here) else path)
