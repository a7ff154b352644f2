"""Parameter types of the command line (targets, times, lists), and what a shell completes for them.

That is targets, by the API of the service; event names and scopes. Each is asked at a key press, so nothing slow is
imported here, and an API that is away completes nothing.
"""

import http.client
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, cast
from urllib.parse import urlsplit

import click
from click.shell_completion import CompletionItem

from app.config.arn import TargetId, parse_source, parse_target
from app.config.bucket_settings import parse_bucket
from app.config.declared_types import TYPES
from app.config.errors import BadValue
from app.config.fields.field_types import Size
from app.config.fields.times import parse_time
from app.http_answers import Answer

_Value = TypeVar("_Value")
_TIMEOUT_SECONDS = 0.5
_MAX_ANSWER_BYTES = 1 << 24
_DEFAULT_ADDRESS = "127.0.0.1:8730"


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


def complete_target(incomplete: str) -> list[CompletionItem]:
    """Return the targets as type:name, or as ARNs where one is begun."""
    answer = _get("/v1/targets?brief=true")
    names = [
        target["arn"] if incomplete.startswith("arn") else f"{target['type']}:{target['name']}"
        for target in answer.get("targets", [])
    ]
    return _beginning(incomplete, names)


def complete_list(incomplete: str, words: Iterable[str]) -> list[CompletionItem]:
    """Return completions of the last word of a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{item.value}") for item in _beginning(last, words)]


def complete_events(_context: object, _parameter: object, incomplete: str) -> list[CompletionItem]:
    """Return the words of `mc` for events, and the names of events once one is begun."""
    from app.events.names import AGGREGATES, EVERY, KNOWN, SHORTHANDS  # noqa: PLC0415 - only where they are completed

    names: Sequence[str] = sorted(KNOWN | AGGREGATES.keys())
    return complete_list(incomplete, names if incomplete.rpartition(",")[2].startswith("s3") else [*SHORTHANDS, EVERY])


def complete_event(_context: object, _parameter: object, incomplete: str) -> list[CompletionItem]:
    """Return the names of single events."""
    from app.events.names import KNOWN  # noqa: PLC0415 - only where they are completed

    return _beginning(incomplete, sorted(KNOWN))


def complete_scopes(_context: object, _parameter: object, incomplete: str) -> list[CompletionItem]:
    """Return the scopes of a token."""
    from app.config.settings import SCOPES  # noqa: PLC0415 - only where they are completed

    return complete_list(incomplete, SCOPES)


def _beginning(incomplete: str, words: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _get(path: str) -> dict[str, Any]:
    """Return what the API at BUCKETWIRE_URL, or at this machine's address, answers; {} if it does not."""
    url = os.environ.get("BUCKETWIRE_URL") or f"http://{os.environ.get('BUCKETWIRE_LISTEN') or _DEFAULT_ADDRESS}"
    token = os.environ.get("BUCKETWIRE_TOKEN", "")
    try:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_SECONDS)
        connection.response_class = Answer
        try:
            connection.request(
                "GET", parts.path.rstrip("/") + path, headers={"Authorization": f"Bearer {token}"} if token else {}
            )
            answer = json.loads(connection.getresponse().read(_MAX_ANSWER_BYTES))
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return answer if isinstance(answer, dict) else {}
