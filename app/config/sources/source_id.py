"""A source's identity."""

from dataclasses import dataclass

from app.config.arn import TargetId
from app.config.errors import BadValue


@dataclass(frozen=True, order=True, slots=True)
class SourceId:
    """Type and name of a source, which are written as a target's. Raises `BadValue`."""

    type: str
    name: str

    def __post_init__(self) -> None:
        try:
            TargetId(self.type, self.name)
        except BadValue as error:
            raise BadValue(error.problem.replace("target", "source"), "write type:name, such as kafka:minio") from None

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


def parse_source(text: str) -> SourceId:
    """Parse a source from `type:name`. Raises `BadValue`."""
    type_name, colon, name = text.partition(":")
    if not colon:
        raise BadValue("is not a source", "write type:name, such as kafka:minio")
    return SourceId(type_name, name)
