"""Read the rules of every bucket of a running MinIO through its S3 API."""

from collections.abc import Iterator, Mapping
from typing import Any

import botocore.config
import botocore.exceptions
import botocore.session

import app.boto_connections  # noqa: F401 - reads answers strictly
from app.config.arn import parse_arn
from app.config.errors import BadValue
from app.rules.model import PREFIX_AND_SUFFIX, Rule

_ONCE = {"total_max_attempts": 2}


class MinioUnreachable(Exception):
    """The server is unreachable or does not answer like S3; the message describes the error, without secrets."""


def bucket_rules(
    endpoint: str, access_key: str, secret_key: str, *, region: str = "us-east-1", ca: str = ""
) -> Iterator[Rule | tuple[str, str]]:
    """Yield every rule of every bucket, or the bucket and the reason if a rule cannot be imported.

    `ca` is a PEM file of the only authorities to trust; without one the system's are trusted. Raises
    `MinioUnreachable`.
    """
    config = botocore.config.Config(
        s3={"addressing_style": "path"}, connect_timeout=5, read_timeout=30, retries=_ONCE, proxies={}
    )
    try:
        client = botocore.session.get_session().create_client(
            "s3", endpoint_url=endpoint, region_name=region, aws_access_key_id=access_key,
            aws_secret_access_key=secret_key, config=config, verify=ca or None,
        )  # fmt: skip
    except ValueError:
        raise MinioUnreachable(f"{endpoint!r} is not an endpoint URL; write http://host:9000") from None
    try:
        for bucket in client.list_buckets()["Buckets"]:
            name = str(bucket["Name"])
            document = client.get_bucket_notification_configuration(Bucket=name)
            for queue in document.get("QueueConfigurations", ()):
                yield _rule(name, queue)
            if any(document.get(name) for name in ("TopicConfigurations", "LambdaFunctionConfigurations")):
                yield name, "has rules for topics or functions, which MinIO does not have"
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        raise MinioUnreachable(f"{endpoint}: {error}") from None
    finally:
        client.close()


def _rule(bucket: str, queue: Mapping[str, Any]) -> Rule | tuple[str, str]:
    try:
        _, target = parse_arn(queue["QueueArn"])
    except BadValue as error:
        return bucket, f"{queue['QueueArn']} {error.problem}"
    filters = {
        rule["Name"].lower(): rule["Value"] for rule in queue.get("Filter", {}).get("Key", {}).get("FilterRules", ())
    }
    return Rule(
        bucket=bucket,
        events=tuple(dict.fromkeys(queue["Events"])),
        target=target,
        prefix=filters.get("prefix", ""),
        suffix=filters.get("suffix", ""),
        rule_id=queue.get("Id", ""),
        filter_names=tuple(name for name in filters if name in PREFIX_AND_SUFFIX),
    )
