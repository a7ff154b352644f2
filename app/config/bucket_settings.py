"""Where a bucket is, and how the jobs that list it log in: the settings of one bucket."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from app.config.errors import BadValue, Problem
from app.config.fields.aws import Endpoint, Region, key_problems
from app.config.fields.field_types import Choice, FieldType, Path, Text, Toggle
from app.config.fields.fields import Declared, declared, setting
from app.events.buckets import name_at_store

_MAX_NAME = 255  # characters, as in events


@dataclass(frozen=True, order=True, slots=True)
class BucketId:
    """A bucket as events and rules name it. Raises `BadValue`."""

    name: str

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= _MAX_NAME or not self.name.isprintable() or "/" in self.name or self.name == "*":
            raise BadValue("is not the name of a bucket", "write the name that the bucket has in events and rules")

    @property
    def type(self) -> str:
        """The type of its settings, as a target has one."""
        return "bucket"

    def __str__(self) -> str:
        return f"bucket:{self.name}"


class StorageName(FieldType[str]):
    """The name of a bucket in its storage."""

    label = "bucket"
    empty = ""

    def parse(self, text: str) -> str:
        """Return the name."""
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._:/-]{2,511}", text):
            raise BadValue("is not the name of a bucket", "write its name, or the ARN of an access point")
        return text


@declared
class BucketSettings(Declared):
    """How to list a bucket: whatever is left out, boto3 finds on the machine of the job."""

    endpoint: str = setting(Endpoint(), default="", about="its S3 endpoint; empty: as AWS_ENDPOINT_URL_S3 says")
    bucket: str = setting(
        StorageName(),
        default="",
        about="the bucket's name there; empty: as here, but with an endpoint or access key without its tenant",
    )
    region: str = setting(Region(), default="", about="the region to sign for; empty: as AWS_REGION says")
    access_key: str = setting(
        Text(ascii_only=True), default="", about="access key; needs secret_key; empty: the credentials of boto3"
    )
    secret_key: str = setting(Text(ascii_only=True), default="", secret=True, about="secret of the access key")
    session_token: str = setting(
        Text(ascii_only=True), default="", secret=True, about="token of temporary credentials, which are not renewed"
    )
    tls_ca: str = setting(
        Path(),
        default="",
        about="PEM file of the authorities to trust, on every machine of the job",
    )

    addressing_style: Literal["auto", "path", "virtual"] = setting(
        Choice("auto", "path", "virtual"),
        default="auto",
        about="where a request has the bucket's name: in the path, or in the host's (virtual); auto: path, but for AWS",
    )
    requester_pays: bool = setting(Toggle(), default="off", about="pay for the requests of the job at AWS")

    def problems(self) -> Iterator[Problem]:
        """Yield what is missing beside an access key."""
        yield from super().problems()
        yield from key_problems(self.access_key, self.secret_key, self.session_token)

    def ineffective(self) -> Iterator[Problem]:
        """Yield `tls_ca` without TLS."""
        yield from super().ineffective()
        if self.tls_ca and self.endpoint.startswith("http:"):
            yield Problem("tls_ca", self.tls_ca, "has no effect without TLS", "begin endpoint with https://")

    def name_in_storage(self, name: str) -> str:
        """Return the name that the storage has for the bucket which events and rules call `name`.

        The tenant is left out only where the settings lead to the tenant's own storage, or have its credentials: those
        of every bucket may lead to another's bucket of that name. Ceph takes the name with the tenant.
        """
        return self.bucket or (name_at_store(name) if self.endpoint or self.access_key else name)


def parse_bucket(text: str) -> BucketId:
    """Parse a bucket's name. Raises `BadValue`."""
    return BucketId(text.removeprefix("bucket:") if text.startswith("bucket:") else text)
