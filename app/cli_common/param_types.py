"""Parameter types of the command line: targets, times, lists."""

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from app.cli_common.completion import complete_target
from app.config.arn import TargetId, parse_source, parse_target
from app.config.bucket_settings import parse_bucket
from app.config.declared_types import TYPES
from app.config.errors import BadValue
from app.config.fields.field_types import Size
from app.config.fields.times import parse_time

_Value = TypeVar("_Value")


class ParsedParam(click.ParamType, Generic[_Value]):  # type: ignore[type-arg]  # generic only in newer click
    """What `parse` makes of a text; it raises `BadValue`."""

    def __init__(self, name: str, parse: Callable[[str], _Value]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _Value:
        """Parse a text; a default is parsed already."""
        if not isinstance(value, str):
            return cast("_Value", value)
        try:
            return self._parse(value)
        except BadValue as error:
            self.fail(f"{value!r} {error.problem}; {error.hint}", param, ctx)


class TargetParam(ParsedParam[TargetId]):
    """A target as `type:name` or as an ARN."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002 - click's signature
        """Return the service's targets that begin so."""
        return complete_target(incomplete)


class BucketParam(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A bucket, also as `mc` names it: ALIAS/BUCKET."""

    name = "bucket"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the bucket without the alias."""
        alias, _, bucket = str(value).strip("/").rpartition("/")
        if "/" in alias:
            self.fail(f"{value!r} is not a bucket; write BUCKET or ALIAS/BUCKET", param, ctx)
        return bucket


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


BUCKET = BucketParam()
PAIR = PairParam()
KEY_VALUE = PairParam("KEY=VALUE")
SIZE = ParsedParam("size", Size(0, 2**53).parse)  # bytes, plain or with KiB, MiB or GiB
BUCKET_ID = ParsedParam("bucket", parse_bucket)
SOURCE = ParsedParam("source", parse_source)
TARGET = TargetParam("target", parse_target)
# RFC 3339, ms since 1970, or how long ago, as the API takes it: milliseconds since 1970.
TIME = ParsedParam("time", lambda text: parse_time(text, time.time()))


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
