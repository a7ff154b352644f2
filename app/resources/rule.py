"""Rules: which events go to which target."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, UnsetType

from app.config.arn import TargetId
from app.events.names import AGGREGATES, EVERY, KNOWN
from app.resources.declaration import (
    TARGET,
    TEXT,
    TEXT_OR_EMPTY,
    Arn,
    Columns,
    Member,
    Query,
    Resource,
    about,
    list_of,
    number,
)

MAX_NUMBER = 2**31 - 1  # of a rule, which the table can have
MAX_REMOVED = 10_000  # rules that one request removes
MAX_BYTES = 2**53  # of an object: JSON has no greater whole number that every program reads exactly
_EVENT_NAME = {"type": "string", "enum": [EVERY, *sorted(AGGREGATES), *sorted(KNOWN)]}
EventName = Annotated[str, Meta(extra_json_schema=_EVENT_NAME)]
_NUMBERS = list_of(
    number(1, MAX_NUMBER), f"give 1 to {MAX_REMOVED} numbers of rules", problem="is not a list of numbers", least=1,
    most=MAX_REMOVED,
)  # fmt: skip
_SET = "^[^\\u0000]+$"
_PAIRS = {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
_SIZE = {"type": ["integer", "string", "null"]}
_REGEX = "a regular expression (RE2) that the whole key must match"
_METADATA = "entries of the object's metadata that the event must carry"
_TAGS = "tags of the object that the event must carry"
_MIN_SIZE, _MAX_SIZE = "least size of the object in bytes", "greatest size of the object in bytes"


def event_names(text: str, **schema: Any) -> Member:
    """Return a member that is a list of event names."""
    hint = 'write ["s3:ObjectCreated:*"], or ["*"] for every event'
    names = list_of(TEXT, hint, problem="is not a list of event names")
    return names(text, items=_EVENT_NAME, **schema)


def unparsed(schema: Mapping[str, Any], text: str) -> Member:
    """Return a member whose value is parsed with others."""
    return Member(lambda value: value, schema, takes_blank=True)(text)


class RuleFacts(Resource):
    """A rule without its number. Filters beside prefix and suffix are members only if they are set."""

    bucket: Annotated[str, about("the bucket's name; * for every bucket", minLength=1, maxLength=255)]
    events: Annotated[list[EventName], about('["*"] for every event, known or not', minItems=1, uniqueItems=True)]
    prefix: str
    suffix: str
    target: Annotated[str, about("the target: its ARN; in a plan type:name", pattern=TARGET.schema["pattern"])]
    rule_id: str
    regex: Annotated[str | UnsetType, about(_REGEX)] = UNSET
    metadata: Annotated[Mapping[str, str] | UnsetType, about(_METADATA)] = UNSET
    tags: Annotated[Mapping[str, str] | UnsetType, about(_TAGS)] = UNSET
    min_size: Annotated[int | UnsetType, about(_MIN_SIZE)] = UNSET
    max_size: Annotated[int | UnsetType, about(_MAX_SIZE)] = UNSET


class Rule(RuleFacts):
    """A rule; its number is the name by which it is removed."""

    columns: ClassVar[Columns] = {
        "rule": "number", "bucket": "bucket", "ARN": "target", "events": "events", "prefix": "prefix",
        "suffix": "suffix",
    }  # fmt: skip

    number: int


class Rules(Resource):
    """Rules, the oldest first."""

    rules: list[Rule]


class RulesQuery(Query):
    """Which rules to list."""

    bucket: Annotated[str | None, TEXT("return only the rules that name this bucket")] = None


class NewRule(Query):
    """A rule to add."""

    bucket: Annotated[str, TEXT_OR_EMPTY("the bucket's name; * for every bucket", minLength=1, maxLength=255)]
    events: Annotated[Sequence[str], event_names('["*"] for every event, known or not', minItems=1, uniqueItems=True)]
    prefix: Annotated[str, TEXT("of the key")] = ""
    suffix: Annotated[str, TEXT("of the key")] = ""
    target: Annotated[TargetId, TARGET]
    rule_id: Annotated[str, TEXT("a name of the client's own")] = ""
    regex: Annotated[Any, unparsed({"type": ["string", "null"]}, _REGEX)] = None
    metadata: Annotated[Any, unparsed(_PAIRS, _METADATA)] = None
    tags: Annotated[Any, unparsed(_PAIRS, _TAGS)] = None
    min_size: Annotated[Any, unparsed(_SIZE, f"{_MIN_SIZE}, or a text such as 1MiB")] = None
    max_size: Annotated[Any, unparsed(_SIZE, f"{_MAX_SIZE}, or a text such as 1MiB")] = None


class RuleNumbers(Query):
    """Rules to remove."""

    numbers: Annotated[Sequence[int], _NUMBERS("the numbers of the rules")]


class RemovedRules(Resource):
    """The rules that are removed."""

    removed: list[int]


class MatchedEvent(Query):
    """An event to match with the rules."""

    bucket: Annotated[str, TEXT("the event's bucket", minLength=1, pattern=_SET)]
    key: Annotated[str, TEXT("the object's key")] = ""
    event: Annotated[str, TEXT("its name, such as s3:ObjectCreated:Put", minLength=1, pattern=_SET)]
    metadata: Annotated[Any, unparsed(_PAIRS, "the object's metadata")] = None
    tags: Annotated[Any, unparsed(_PAIRS, "the object's tags")] = None
    size: Annotated[int | None, number(0, MAX_BYTES)("of the object in bytes", type=["integer", "null"])] = None


class MatchedTarget(Resource):
    """A target that gets an event."""

    target: Arn
    state: str


class Match(Resource):
    """What becomes of an event."""

    rules: list[Rule]
    targets: list[MatchedTarget]
