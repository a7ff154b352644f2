"""Parameter types of the command line: targets, times, lists."""

import time
from datetime import UTC, datetime
from typing import Any

import click
from click.shell_completion import CompletionItem

from app.cli_common.completion import complete_target
from app.config.arn import TargetId, parse_target
from app.config.errors import BadValue
from app.config.fields.field_types import Size
from app.config.fields.times import parse_time
from app.config.sources.source_id import SourceId, parse_source
from app.config.targets.registry import TYPES

_LAST = 253_402_300_799_999  # ms: the end of the year 9999
_SIZE = Size(0, 2**53)


class TargetParam(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A target as `type:name` or as an ARN."""

    name = "target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TargetId:
        """Parse the target."""
        if isinstance(value, TargetId):
            return value
        try:
            return parse_target(value)
        except BadValue as error:
            self.fail(f"{value!r} {error.problem}; {error.hint}", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002 - click's signature
        """Return the service's targets that begin so."""
        return complete_target(incomplete)


class SourceParam(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A source as `type:name`."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> SourceId:
        """Parse the source."""
        if isinstance(value, SourceId):
            return value
        try:
            return parse_source(value)
        except BadValue as error:
            self.fail(f"{value!r} {error.problem}; {error.hint}", param, ctx)


class BucketParam(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A bucket, also as `mc` names it: ALIAS/BUCKET."""

    name = "bucket"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the bucket without the alias."""
        alias, _, bucket = str(value).strip("/").rpartition("/")
        if "/" in alias:
            self.fail(f"{value!r} is not a bucket; write BUCKET or ALIAS/BUCKET", param, ctx)
        return bucket


class TimeParam(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A time, as the API takes it: RFC 3339, milliseconds since 1970, or how long ago. Milliseconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the time."""
        try:
            return parse_time(value, time.time())
        except BadValue as error:
            self.fail(f"{value!r} {error.problem}; {error.hint}", param, ctx)


class PairParam(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A name with its value: NAME=VALUE, or what else `form` calls them."""

    name = "pair"

    def __init__(self, form: str = "NAME=VALUE") -> None:
        self._form = form

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return name and value; the value may contain `=`."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not {self._form}", param, ctx)
        return name, text


class SizeParam(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A number of bytes, plain or with KiB, MiB or GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the size."""
        if isinstance(value, int):
            return value
        try:
            return _SIZE.parse(value)
        except BadValue as error:
            self.fail(f"{value!r} {error.problem}; {error.hint}", param, ctx)


BUCKET = BucketParam()
PAIR = PairParam()
KEY_VALUE = PairParam("KEY=VALUE")
SIZE = SizeParam()
SOURCE = SourceParam()
TARGET = TargetParam()
TIME = TimeParam()


def iso(at: int) -> str | None:
    """Format milliseconds since 1970 as ISO 8601; None for 0, which means never."""
    if not at:
        return None
    return datetime.fromtimestamp(min(at, _LAST) / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def split_words(text: str) -> list[str]:
    """Split a comma-separated list into its words."""
    return [word for word in (part.strip() for part in text.split(",")) if word]


def parse_served_targets(text: str) -> str:
    """Check what a worker serves; return the value of `BUCKETWIRE_WORKER_TARGETS`. Raises `click.BadParameter`."""
    served = []
    for word in split_words(text):
        if word == "*" or word in TYPES:
            served.append(word)
            continue
        try:
            target = parse_target(word)
        except BadValue:
            raise click.BadParameter(
                f"{word!r} is neither a target type ({', '.join(TYPES)}) nor a target such as webhook:audit"
            ) from None
        if target.type not in TYPES:
            raise click.BadParameter(f"{target.type!r} is not a known target type; known are {', '.join(TYPES)}")
        served.append(str(target))
    if not served:
        raise click.BadParameter("names no target; leave the option out to serve all of them")
    return ",".join(served)
