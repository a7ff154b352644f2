"""What commands have in common: the API of the service that they work on, and output for people or for programs."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, update_wrapper
from typing import Any, TypeVar

import click

from app.api import Refused
from app.cli.client import Client, Transport
from app.cli_common.context import ServiceContext
from app.cli_common.output import Output

R = TypeVar("R")
_UNCOLLECTED_OBJECTS = 300_000  # nearly all that a command creates are of modules, which stay


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
