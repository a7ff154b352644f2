"""Share among commands the client of the API of the service that they work on, and output for people or for programs.

The API is that of the service at a URL, or of this machine's service, whose routes this process then runs. What a route
answers is the same either way, and so is what it refuses. Here are also the commands that pause and resume what has a
state of its own, a target or a source.
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, update_wrapper
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode

import click
import orjson

from app.api import Refused
from app.cli_common import CommandError
from app.cli_common.context import ServiceContext
from app.cli_common.output import Output
from app.cli_common.param_types import ParsedParam
from app.config.arn import SourceId, TargetId
from app.events.model import EVENT_ID

MAX_PAGE = 1000  # rows, the API's largest page
R = TypeVar("R")
_UNCOLLECTED_OBJECTS = 300_000  # nearly all that a command creates are of modules, which stay


class Transport(Protocol):
    """What calls the routes: `app.api.in_process.CommandApi`, or `app.cli.http_api.HttpApi`."""

    def call(self, method: str, path: str, query: str, body: bytes | None) -> dict[str, Any]:
        """Call a route with a decoded path, and return its JSON, {} if it answers nothing. Raises `Refused`."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class Client:
    """Calls of the API. Each raises `Refused` for what the API refuses, and `CommandError` if it cannot be called.

    A query's parameter that is None is left out, a list is comma-separated, and a flag is sent only if it is set.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Return what a route shows."""
        return self._transport.call("GET", path, _query(query), None)

    def change(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> dict[str, Any]:
        """Change something; `body` is sent as JSON."""
        try:
            content = orjson.dumps(body or {})
        except orjson.JSONEncodeError as error:  # YAML and JSON can write half a surrogate pair
            raise CommandError(f"a text cannot be sent: {error}") from None
        return self._transport.call(method, path, _query(query), content)

    def pages(self, path: str, member: str, *, limit: int, after: Any = None, **query: Any) -> list[dict[str, Any]]:
        """Return the first `limit` rows of a list that comes in pages, after the row or page `after`."""
        return list(self.each(path, member, limit=limit, after=after, **query))

    def each(self, path: str, member: str, *, limit: int, after: Any = None, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield the same rows; one page of them is in memory at a time."""
        while limit:
            page = self.get(path, limit=min(MAX_PAGE, limit), after=after, **query)
            yield from page[member]
            limit, after = limit - len(page[member]), page["next"]
            if after is None:
                break

    def close(self) -> None:
        """Close the connection; what was changed on this machine wakes the service."""
        self._transport.close()


def target_path(target: TargetId) -> str:
    """Return the path of a target's routes."""
    return f"/v1/targets/{target.type}/{target.name}"


def source_path(source: SourceId) -> str:
    """Return the path of a source's routes."""
    return f"/v1/sources/{source.type}/{source.name}"


def event_path(event_id: str) -> str:
    """Return the path of an event. Raises `CommandError` for what is no id: `stream` is a route that never ends."""
    if not EVENT_ID.fullmatch(event_id):
        raise CommandError(f"there is no event {event_id[:100]!r}; an id has 32 hexadecimal digits")
    return f"/v1/events/{event_id}"


def named_path(collection: str, name: str, missing: str) -> str:
    """Return the path of what a user calls `name`, below the path of its collection.

    Raises `CommandError` with `missing` for a name that leads elsewhere: a client of HTTP removes `..` from a path.
    """
    if "/" in name or name in ("", ".", ".."):
        raise CommandError(missing)
    return f"{collection}/{name}"


def target_name(target: Mapping[str, Any]) -> str:
    """Return a target's name as commands take it, `type:name`."""
    return f"{target['type']}:{target['name']}"


def _query(query: Mapping[str, Any]) -> str:
    return urlencode({name: text for name, value in query.items() if (text := _text(value)) is not None})


def _text(value: Any) -> str | None:
    match value:
        case None | False:
            return None
        case True:
            return "true"
        case list() | tuple():
            return ",".join(map(str, value)) or None
        case _:
            return str(value)


class CommandContext(Output):
    """The API of a service: of the one at `--url`, else of this machine's, whose routes run in this process.

    So a command on this machine needs no running API. Its changes are those of the operating system's user; `via` is
    the command that the audit log names.
    """

    def __init__(self, *, as_json: bool = False, url: str = "", token: str = "", via: str = "") -> None:
        super().__init__(as_json=as_json)
        self.url = url
        self._token, self._via = token, via
        self._closing: list[Callable[[], None]] = []

    @cached_property
    def api(self) -> Client:
        """The API. Raises `CommandError`, or `BadSettings` for settings of this machine that cannot be used."""
        client = Client(self._remote() if self.url else self._local())
        self._closing.append(client.close)
        return client

    def _remote(self) -> Transport:
        from app.cli.http_api import HttpApi  # noqa: PLC0415 - loads requests, which commands on the database do not need

        return HttpApi(self.url, self._token)

    def _local(self) -> Transport:
        from app.api.in_process import CommandApi  # noqa: PLC0415 - loads Flask, SQLAlchemy, which --url does not need
        from app.api.services import Services  # noqa: PLC0415 - see above
        from app.outbox.audit import operating_system_actor  # noqa: PLC0415 - see above

        service = ServiceContext()
        self._closing.append(service.close)
        return CommandApi(Services(service.settings, service.database), operating_system_actor(self._via))

    def close(self) -> None:
        """Close what was opened."""
        while self._closing:
            self._closing.pop()()


def with_api(function: Callable[..., R]) -> Callable[..., R]:
    """Add `--url`, `--token` and `--json` to a command, and pass a `CommandContext`, closed at the end, as the first.

    It has to be the innermost decorator. A value that the API refuses is a usage error of the option of that name.
    """

    @click.option("--url", envvar="BUCKETWIRE_URL", default="", help="Use the API at this URL instead of the database.")
    @click.option(
        "--token", envvar="BUCKETWIRE_TOKEN", default="", help="Bearer token for --url; prefer BUCKETWIRE_TOKEN."
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON, as the API answers it.")
    @click.pass_context
    def command(
        click_context: click.Context, /, *arguments: Any, as_json: bool, url: str, token: str, **options: Any
    ) -> R:
        for parameter in click_context.command.params:
            _check_text(click_context, parameter, options.get(parameter.name or ""))
        click_context.with_resource(_without_collections())
        # The command's name only is audited: its arguments may be secrets.
        context = CommandContext(as_json=as_json, url=url, token=token, via=click_context.command_path)
        click_context.call_on_close(context.close)
        try:
            return function(context, *arguments, **options)
        except Refused as refused:
            field = str(refused.body.get("field"))
            option = f"--{field.replace('_', '-')}"
            if refused.kind == "bad-value" and any(option in known.opts for known in click_context.command.params):
                raise click.BadParameter(str(refused).removeprefix(f"{field} "), param_hint=option) from None
            raise

    return update_wrapper(command, function)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Do not look for garbage among what a short command imports, which takes a sixth of its time."""
    thresholds = gc.get_threshold()
    gc.set_threshold(_UNCOLLECTED_OBJECTS)
    try:
        yield
    finally:
        gc.freeze()  # what there is counts as old afterwards: otherwise the next allocation looks through all of it
        gc.unfreeze()
        gc.set_threshold(*thresholds)


def _check_text(click_context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Raise `click.BadParameter` for an argument that is not text: the system hands over any bytes."""
    if isinstance(value, tuple):  # of several, of which each may be a name with its value
        for part in value:
            _check_text(click_context, parameter, part)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise click.BadParameter("is not text; write it as UTF-8", click_context, parameter) from None


def add_pausing(
    group: click.Group, kind: ParsedParam[Any], path: Callable[[Any], str], *, pause: str, resume: str
) -> None:
    """Add both commands to a group, with these texts for `--help`; `path` returns the path of the routes of one."""
    which = click.argument("which", metavar=kind.name.upper(), type=kind)
    shown = f"The reason that `{kind.name} ls` shows."

    @group.command("pause", help=pause)
    @which
    @click.option("--reason", default="paused by hand", show_default=True, help=shown)
    @with_api
    def _pause(context: CommandContext, which: Any, reason: str) -> None:
        context.done(f"paused {which}", **context.api.change("POST", f"{path(which)}/pause", {"reason": reason}))

    @group.command("resume", help=resume)
    @which
    @with_api
    def _resume(context: CommandContext, which: Any) -> None:
        context.done(f"resumed {which}", **context.api.change("POST", f"{path(which)}/resume"))
