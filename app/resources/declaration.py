"""What the declaration of a resource is made of.

A `Resource` is what the API answers: its members have the types of the JSON, its schema is in the OpenAPI document, and
`columns` are those of the table that a command prints of the JSON. A `Query` is what selects resources: the members of
a query string, of a body, or of both. The routes, their description and SQL read the same one.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar, dataclass_transform, get_type_hints

import msgspec
from msgspec import Meta, Struct, StructMeta

from app.config.arn import TargetId, parse_arn, parse_target
from app.config.declared_types import TYPES
from app.config.errors import BadValue
from app.config.fields import times

MAX_TEXT_CHARACTERS = 4096  # an object's key has at most as many bytes
MAX_PAGE = 1000  # resources
MAX_NUMBER = 2**62  # of what is counted, and of a time in ms, which is never reached: `app.outbox.column_values.NEVER`
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_TARGET_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"

Row = Mapping[str, Any]
Columns = Mapping[str, str | Callable[[Row], object]]  # by header: a member of the JSON, or a value that is made of it


class _Declared(StructMeta):
    """Makes each declaration frozen, with members that are given by name: a Struct does not inherit the latter."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:
        """Make the class of a declaration."""
        return super().__new__(cls, name, bases, namespace, **{"frozen": True, "kw_only": True, **config})


# Type checkers do not know the metaclass.
@dataclass_transform(frozen_default=True, kw_only_default=True)
class Resource(Struct, frozen=True, kw_only=True, metaclass=_Declared):
    """What the API answers. A member that is not in every answer is `UNSET` in the others."""

    columns: ClassVar[Columns] = {}

    @classmethod
    def of(cls, source: object, **members: Any) -> Self:
        """Make it of an object's attributes; `members` are those that it has under other names, or in another form.

        Times are milliseconds there. A member with a default is left at it.
        """
        for name, is_time in _required(cls):
            if name not in members:
                value = getattr(source, name)
                members[name] = format_time(value) if is_time else value
        return cls(**members)


def about(text: str, **schema: Any) -> Meta:
    """Describe a member, with more of its JSON Schema."""
    return Meta(description=text, extra_json_schema=schema or None)


_DATE_TIME = Meta(extra_json_schema={"format": "date-time"})
Time = Annotated[str | None, _DATE_TIME]
Arn = Annotated[
    str, about("the target's ARN", pattern=rf"^arn:minio:sqs:[A-Za-z0-9_-]{{0,64}}:{_TARGET_NAME}:({'|'.join(TYPES)})$")
]
SingleEventName = Annotated[str, about("the event's name, such as s3:ObjectCreated:Put")]
Next = Annotated[int | None, about("the `after` of the next page; null: there is none")]
Json = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]


@cache
def _required(resource: type[Resource]) -> Sequence[tuple[str, bool]]:
    """Return the members without a default, each with whether it is a time."""
    hints = get_type_hints(resource, include_extras=True)
    return [
        (field.name, _DATE_TIME in getattr(hints[field.name], "__metadata__", ()))
        for field in msgspec.structs.fields(resource)
        if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    ]


def format_time(at: int) -> str | None:
    """Format milliseconds since 1970 as RFC 3339 in UTC, in the years 1 to 9999; null for no time."""
    if not at:
        return None
    moment = _EPOCH + timedelta(milliseconds=min(max(at, _FIRST), _LAST))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def short_target(row: Row) -> str:
    """Return the target of a row as commands take it, `type:name`, for a column."""
    return str(parse_arn(row["target"])[1])


def object_path(row: Row) -> str:
    """Return the path of the object of a row, for a column."""
    return f"{row['bucket']}/{row['key']}"


class BadMember(BadValue):
    """A member of a query or of a body has no valid value; `field` is its name."""

    def __init__(self, field: str, problem: str, hint: str) -> None:
        super().__init__(problem, hint)
        self.field = field


@dataclass(frozen=True, slots=True)
class Member:
    """How a member of a `Query` is parsed, and its JSON Schema.

    `parse` gets a value that is set, and raises `BadValue`. A list is comma-separated in a query string.
    """

    parse: Callable[[Any], Any]
    schema: Mapping[str, Any]
    is_list: bool = False
    takes_blank: bool = False  # "" is a value; otherwise it stands for none
    hint: str = ""  # how its value is written
    text: str = ""

    @property
    def description(self) -> str:
        """What it is, and how it is written."""
        return f"{self.text}: {self.hint}" if self.hint else self.text

    def read(self, name: str, value: object) -> Any:
        """Parse the value of the member of this name. Raises `BadMember`."""
        try:
            return self.parse(value)
        except BadValue as error:
            raise BadMember(name, error.problem, error.hint) from None

    def __call__(self, text: str, **schema: Any) -> "Member":
        """Return the member with its description, and with more in its schema."""
        return replace(self, text=text, schema={**self.schema, **schema})


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Query(Struct, frozen=True, kw_only=True, metaclass=_Declared):
    """What selects resources. Each member is annotated with its `Member`; one without a default is required."""


class Nothing(Query):
    """A change that needs no more than its path."""


Q = TypeVar("Q", bound=Query)


class Part(NamedTuple):
    """A member of a query with its name and its default; `msgspec.NODEFAULT` if it is required."""

    name: str
    member: Member
    default: Any


@cache
def parts_of(query: type[Query]) -> Sequence[Part]:
    """Return the members of a query in the order in which they are declared."""
    hints = get_type_hints(query, include_extras=True)
    return [
        Part(field.name, next(one for one in hints[field.name].__metadata__ if isinstance(one, Member)), field.default)
        for field in msgspec.structs.fields(query)
    ]


def filter_parts(query: type[Query]) -> Sequence[Part]:
    """Return the members of a filter that are no list: the fields of a form, or the options of a command."""
    return [part for part in parts_of(query) if not part.member.is_list]


def parse_query(query: type[Q], arguments: Mapping[str, str]) -> Q:
    """Parse a query string. Raises `BadMember`, also for an unknown name."""
    return query(**_parsed(query, arguments, is_body=False))


def parse_body(query: type[Q], members: Mapping[str, Any]) -> Q:
    """Parse the members of a body. Raises `BadMember`, also for an unknown name."""
    return query(**_parsed(query, members, is_body=True))


def parse_change(query: type[Q], members: Mapping[str, Any]) -> Q:
    """Parse a body that says what is changed. Raises `BadMember`.

    A change of everything needs `all`, so that a filter is not left out by mistake.
    """
    filters = {name: value for name, value in members.items() if name != "all"}
    refuse_unknown(filters, (*(part.name for part in parts_of(query)), "all"))
    chosen = {name: value for name, value in filters.items() if value not in (None, "", [])}
    if members.get("all") is True:
        if chosen:
            raise BadMember("all", "contradicts the filter", "omit one of them")
    elif not chosen:
        raise BadMember("all", "is not set, and no filter is", 'give a filter, or {"all": true}')
    return query(**_parsed(query, chosen, is_body=True))


def set_members(query: Query) -> dict[str, Any]:
    """Return the members that are not what they are if nothing is given, as JSON."""
    values = ((part.name, getattr(query, part.name), part.default) for part in parts_of(type(query)))
    return {name: _as_json(value) for name, value, default in values if value not in (default, [])}


def parameters(query: type[Query]) -> list[dict[str, Any]]:
    """Return the query's parameters as OpenAPI describes them."""
    described = []
    for name, member, default in parts_of(query):
        schema: dict[str, Any] = {"type": "string"} if member.is_list else dict(member.schema)
        if isinstance(default, bool) or (isinstance(default, int) and schema.get("minimum", default + 1) <= default):
            schema["default"] = default
        text = f"{member.text}, comma-separated" if member.is_list else member.description
        required = {"required": True} if default is msgspec.NODEFAULT else {}
        described.append({"name": name, "in": "query", "schema": schema, "description": text} | required)
    return described


def body_schema(query: type[Query], *, with_all: bool = False) -> dict[str, Any]:
    """Return the schema of a body; `with_all` is for `parse_change`."""
    properties = {
        part.name: {**part.member.schema, "description": part.member.description}
        | ({"default": part.default} if isinstance(part.default, bool) else {})
        for part in parts_of(query)
    }
    required = [part.name for part in parts_of(query) if part.default is msgspec.NODEFAULT]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if with_all:
        properties["all"] = {"type": "boolean", "description": "required if no filter is given"}
        schema["minProperties"] = 1
    return schema | ({"required": required} if required else {})


def refuse_unknown(members: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise `BadMember` for unknown members: a misspelt filter must not select everything."""
    for name in members:
        if name not in known:
            raise BadMember(name, "is unknown", f"known are {', '.join(known)}")


def _parsed(query: type[Query], given: Mapping[str, Any], *, is_body: bool) -> dict[str, Any]:
    parts = parts_of(query)
    refuse_unknown(given, [part.name for part in parts])
    values = {}
    for name, member, default in parts:
        value = given.get(name)
        if value is None or (value == "" and not member.takes_blank):
            if default is msgspec.NODEFAULT:
                raise BadMember(name, "is missing", f"give {member.text}")
            continue
        if member.is_list and not is_body:
            value = [part for text in value.split(",") if (part := text.strip())]
        values[name] = member.read(name, value)
    return values


def _as_json(value: Any) -> Any:
    match value:
        case TargetId():
            return str(value)
        case tuple() | list():
            return list(value)
        case _:
            return value


def _text(value: object) -> str:
    """Parse a text that every database can search for."""
    if not isinstance(value, str):
        raise BadValue("is not a string", "put it in quotes")
    if len(value) > MAX_TEXT_CHARACTERS:
        raise BadValue(f"has {len(value)} characters", f"give at most {MAX_TEXT_CHARACTERS}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadValue("has an unpaired surrogate", "write it as UTF-8") from None
    if "\0" in value:
        raise BadValue("contains U+0000", "remove it: no name, key or reason has it")
    return value


def _flag(value: object) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False, True: True, False: False}
    if not isinstance(value, str | bool) or value not in known:
        raise BadValue("is neither true nor false", "write true or false")
    return known[value]


TEXT = Member(_text, {"type": "string", "maxLength": MAX_TEXT_CHARACTERS, "pattern": "^[^\\u0000]*$"})
TEXT_OR_EMPTY = replace(TEXT, takes_blank=True)
# As milliseconds since 1970.
TIME = Member(
    lambda value: times.parse_time(value, time.time()),
    {"type": "string", "format": "date-time"},
    hint=times.TIME_HINT,
)
EXPIRY = Member(lambda value: times.parse_expiry(value, time.time()), {"type": "string"}, hint=times.EXPIRY_HINT)
FLAG = Member(_flag, {"type": "boolean"})
TARGET = Member(lambda value: parse_target(_text(value)), {
    "type": "string",
    "pattern": rf"^({'|'.join(TYPES)}):{_TARGET_NAME}$"
    rf"|^arn:minio:sqs:[A-Za-z0-9_-]{{0,64}}:{_TARGET_NAME}:({'|'.join(TYPES)})$",
})("the target, as an ARN or type:name")  # fmt: skip


def number(least: int, most: int) -> Member:
    """Return a member that is an integer from `least` to `most`."""

    def parse(value: object) -> int:
        if isinstance(value, float) and value.is_integer():  # in JSON Schema 5.0 is an integer too
            value = int(value)
        try:
            parsed = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else least - 1
        except ValueError:
            parsed = least - 1
        if not least <= parsed <= most:
            raise BadValue("is not in range", f"give a whole number from {least} to {most}")
        return parsed

    return Member(parse, {"type": "integer", "minimum": least, "maximum": most}, takes_blank=True)


def choice(names: Sequence[str], problem: str) -> Member:
    """Return a member that is one of some names; `problem` says what another value is not."""

    def parse(value: object) -> str:
        if _text(value) not in names:
            raise BadValue(problem, f"give one of {', '.join(names)}")
        return str(value)

    return Member(parse, {"type": "string", "enum": list(names)})


def list_of(
    member: Member, example: str, *, problem: str = "is not a list", least: int = 0, most: int | None = None
) -> Member:
    """Return a member that is a list of `least` to `most` others; `problem` and `example` are for what is none."""

    def parse(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) < least or (most is not None and len(value) > most):
            raise BadValue(problem, example)
        return tuple(map(member.parse, value))

    schema: dict[str, Any] = {"type": "array", "items": member.schema}
    schema |= {"minItems": least} if least else {}
    schema |= {"maxItems": most} if most is not None else {}
    return Member(parse, schema, is_list=True)


Limit = Annotated[int, number(1, MAX_PAGE)("the most to return")]
After = Annotated[int, number(0, MAX_NUMBER)("the `next` of the previous page")]
