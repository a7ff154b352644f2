"""The identity of a target and its ARN (reference §1.10), and the identity of a source."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from app.config.errors import BadValue

UNNAMED = "_"
_PREFIX = "arn:minio:sqs:"
_TYPE = re.compile(r"[a-z][a-z0-9]{0,31}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_REGION = re.compile(r"[A-Za-z0-9_-]{0,64}")


@dataclass(frozen=True, order=True, slots=True)
class TargetId:
    """Type and name of a target. The name is case-sensitive; `_` is the unnamed target. Raises `BadValue`.

    MinIO forbids only `:` in a name. Here a name is also part of queue names and of API paths, so it has
    1 to 64 letters, digits, `_`, `-` or `.`, and begins with a letter, a digit or `_`.
    """

    type: str
    name: str

    def __post_init__(self) -> None:
        if not _TYPE.fullmatch(self.type):
            raise BadValue("is not a target type", "a type is a lower-case word such as redis, postgresql or webhook")
        if not _NAME.fullmatch(self.name):
            raise BadValue(
                "is not a target name",
                "use 1 to 64 letters, digits, _ - or ., beginning with a letter, digit or _ (_ alone: unnamed)",
            )

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    def arn(self, region: str = "") -> str:
        """Return `arn:minio:sqs:<region>:<name>:<type>`; the region is empty unless the site has one."""
        return f"{_PREFIX}{region}:{self.name}:{self.type}"


def differing_in_case(target: TargetId, known: Iterable[TargetId]) -> TargetId | None:
    """Return the known target whose name differs from this one's only in case, or None."""
    folded = str(target).casefold()
    return next((other for other in known if str(other).casefold() == folded), None)


def parse_arn(text: str) -> tuple[str, TargetId]:
    """Parse an ARN into its region and target. Raises `BadValue`.

    As in MinIO, an ARN has six parts, and name and type are not empty (§1.10).
    """
    parts = text.split(":")
    if not text.startswith(_PREFIX) or len(parts) != 6 or not _REGION.fullmatch(parts[3]):
        raise BadValue("is not a target's ARN", "write arn:minio:sqs:<region>:<name>:<type>, the region may be empty")
    _, _, _, region, name, type_ = parts
    return region, TargetId(type_, name)


def parse_target(text: str) -> TargetId:
    """Parse a target from `type:name` or an ARN. Raises `BadValue`."""
    if text.startswith("arn:"):
        return parse_arn(text)[1]
    type_, colon, name = text.partition(":")
    if not colon:
        raise BadValue("is not a target", "write type:name, such as redis:cache, or the target's ARN")
    return TargetId(type_, name)


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
