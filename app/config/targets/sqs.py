"""The settings of Amazon SQS, and of servers that speak its protocol."""

import re
from collections.abc import Iterator
from typing import Literal
from urllib.parse import urlsplit

from app.config.errors import BadValue, Problem
from app.config.fields.addresses import HttpUrl
from app.config.fields.aws import Endpoint, Region, key_problems
from app.config.fields.field_types import Choice, Text, Toggle
from app.config.fields.fields import declared, setting
from app.config.targets.base import MessageSettings, Payload, TlsFiles

_AWS_HOST = re.compile(r"(?:.+\.)?sqs\.([a-z0-9-]+)\.(?:vpce\.)?amazonaws\.com(?:\.cn)?")
_DEFAULT_REGION = "us-east-1"


class QueueUrl(HttpUrl):
    """The URL of a queue, as SQS names it; its path ends with the queue's name."""

    label = "queue URL"

    def parse(self, text: str) -> str:
        url = super().parse(text)
        parts = urlsplit(url)
        if not parts.path.strip("/") or parts.query:
            raise BadValue("is not the URL of a queue", "write it as https://sqs.REGION.amazonaws.com/ACCOUNT/QUEUE")
        if "@" in url:
            raise BadValue("has a login, which SQS does not have", "set access_key and secret_key")
        return url


@declared
class SqsConnection(TlsFiles):
    """How to reach a queue and log in: of a target or a source."""

    tls_hint = "begin queue_url with https://"

    queue_url: str = setting(QueueUrl(), about="the queue's URL; one that ends with .fifo is a FIFO queue")
    region: str = setting(
        Region(), default="", about=f"the region to sign for; empty: as queue_url says, else {_DEFAULT_REGION}"
    )
    endpoint: str = setting(
        Endpoint(), default="", about="where requests go, such as a VPC endpoint; empty: the host of queue_url"
    )
    access_key: str = setting(Text(ascii_only=True), default="", about="access key; needs secret_key")
    secret_key: str = setting(Text(ascii_only=True), default="", secret=True, about="secret of the access key")
    session_token: str = setting(
        Text(ascii_only=True), default="", secret=True, about="token of temporary credentials, which are not renewed"
    )
    instance_role: bool = setting(
        Toggle(),
        default="off",
        about="log in as the role of the machine, container or pod, in place of access_key; needs https",
        of_host=True,
    )

    @property
    def url(self) -> str:
        """The URL that requests go to."""
        parts = urlsplit(self.queue_url)
        return self.endpoint or f"{parts.scheme}://{parts.netloc}/"

    @property
    def signed_region(self) -> str:
        """The region to sign for."""
        match = _AWS_HOST.fullmatch(urlsplit(self.queue_url).hostname or "")
        return self.region or (match[1] if match else _DEFAULT_REGION)

    @property
    def is_fifo(self) -> bool:
        """Whether the queue keeps the order of each object's events."""
        return self.queue_url.endswith(".fifo")

    @property
    def uses_tls(self) -> bool:
        """Whether requests go by https."""
        return self.url.startswith("https:")

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from key_problems(self.access_key, self.secret_key, self.session_token)
        if self.instance_role and self.access_key:
            yield Problem("instance_role", "on", "is a second way to log in beside access_key", "keep one of them")
        if not self.instance_role and not self.access_key:
            yield Problem("access_key", "", "is missing", "set access_key and secret_key, or instance_role=on")
        if self.instance_role and not _AWS_HOST.fullmatch(urlsplit(self.url).hostname or ""):
            hint = "set access_key and secret_key, or leave endpoint out"
            yield Problem("instance_role", "on", "would send the role's token to a host that is not of AWS", hint)
        elif self.instance_role and not self.uses_tls:
            yield Problem("instance_role", "on", "would send the role's token in clear text", self.tls_hint)


@declared
class SqsSettings(
    SqsConnection,
    MessageSettings,
    type_name="sqs",
    title="SQS",
    example={
        "queue_url": "https://sqs.us-east-1.amazonaws.com/123456789012/bucketevents",
        "access_key": "ACCESS_KEY",
        "secret_key": "SECRET_KEY",
    },
):
    """Amazon SQS: standard and FIFO queues, also of servers that speak its JSON protocol."""

    payload: Literal["minio", "cloudevents"] = setting(
        Payload("minio", "cloudevents"),
        default="minio",
        about="messages in the shape of body_shape, or CloudEvents in JSON",
    )
    body_shape: str = setting(
        Choice("s3", "minio", "guide"),
        default="s3",
        about="messages as S3 sends them to SQS, as MinIO writes them, or as in MinIO's old guides",
    )
