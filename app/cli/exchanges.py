"""Print the request of an attempt that failed, and its answer."""

from collections.abc import Iterator
from typing import Any

import click

from app.cli_common.output import printable


def print_exchange(exchange: dict[str, Any] | None) -> None:
    """Print a request and its answer as they went over the wire; nothing if there is none."""
    if exchange is None:
        return
    for name, message in (("request", exchange["request"]), ("answer", exchange["response"])):
        click.echo(f"\n{name} of the failed attempt at {exchange['at']}" + ("" if message else ": none"))
        for line in _lines(message) if message else ():
            click.echo(f"  {printable(line)}".rstrip())


def _lines(message: dict[str, Any]) -> Iterator[str]:
    yield message["line"]
    yield from (f"{name}: {value}" for name, value in message["headers"].items())
    yield ""
    yield from message["body"].splitlines()
    if (shown := len(message["body"].encode())) < message["size"]:
        yield f"({shown:,} of {message['size']:,} bytes)"
