"""Notification configurations in XML that MinIO takes, and such that it refuses."""

from __future__ import annotations

ARN = "arn:minio:sqs::cache:redis"
PUT = "<Event>s3:ObjectCreated:Put</Event>"


def queue(inner: str = PUT, arn: str = ARN) -> str:
    return f"<QueueConfiguration><Id>1</Id><Queue>{arn}</Queue>{inner}</QueueConfiguration>"


def filtered(*rules: tuple[str, str]) -> str:
    inner = "".join(f"<FilterRule><Name>{name}</Name><Value>{value}</Value></FilterRule>" for name, value in rules)
    return queue(f"{PUT}<Filter><S3Key>{inner}</S3Key></Filter>")


TAKEN = {
    "none": ("", 0),
    "one": (queue(), 1),
    "an aggregate plus one of its members": (queue(f"<Event>s3:ObjectCreated:*</Event>{PUT}"), 1),
    "two that differ in their ids": (queue() + queue().replace("<Id>1<", "<Id>2<"), 2),
    "overlapping filters for the same event": (filtered(("prefix", "a")) + filtered(("prefix", "ab")), 2),
    "a region where the site has none": (queue(arn="arn:minio:sqs:eu-1:cache:redis"), 1),
    "the scanner family": (queue("<Event>s3:Scanner:*</Event>"), 1),
    "both spellings of a bucket event": (queue("<Event>s3:BucketCreated</Event><Event>s3:BucketCreated:*</Event>"), 1),
    "the same events in another order": (
        queue("<Event>s3:ObjectRemoved:*</Event>" + PUT) + queue(PUT + "<Event>s3:ObjectRemoved:*</Event>"),
        2,
    ),
    "elements that nobody knows": ("<OtherConfiguration/>", 0),
    "filters in capitals, as AWS answers them": (filtered(("Prefix", "a"), ("SUFFIX", "b")), 1),
    "an empty filter value": (filtered(("prefix", "")), 1),
    "a backslash": (filtered(("prefix", "a\\b")), 1),
    "half a segment": (filtered(("prefix", "logs/."), ("suffix", "../x")), 1),
    "a filter of 2,000 bytes": (filtered(("prefix", "x" * 2000)), 1),
    "an id of 300 characters": (queue().replace("<Id>1<", f"<Id>{'i' * 300}<"), 1),
    "a prefix and a suffix": (filtered(("prefix", "a b/"), ("suffix", ".jpg ")), 1),
    "a regular expression": (filtered(("regex", "in/[0-9]+"), ("prefix", "in/")), 1),
}


REFUSED = {
    "a rule without an event": (queue(""), "MalformedXML", "no Event"),
    "an unknown event": (queue("<Event>s3:ObjectCreated:put</Event>"), "InvalidArgument", "event is not supported"),
    "every event by s3:*": (queue("<Event>s3:*</Event>"), "InvalidArgument", "event is not supported"),
    "an event with blanks": (queue("<Event> s3:ObjectCreated:Put</Event>"), "InvalidArgument", "not supported"),
    "the same event twice": (queue(PUT + PUT), "InvalidArgument", "Configurations overlap"),
    "no ARN": (queue(arn=""), "InvalidArgument", "destination ARN"),
    "a malformed ARN": (queue(arn="arn:aws:sqs::cache:redis"), "InvalidArgument", "destination ARN"),
    "an ARN of five parts": (queue(arn="arn:minio:sqs:cache:redis"), "InvalidArgument", "destination ARN"),
    "a target that is not there": (queue(arn="arn:minio:sqs::other:redis"), "InvalidArgument", "destination ARN"),
    "a filter by Regex": (filtered(("Regex", "a")), "InvalidArgument", "prefix, suffix or regex"),
    "two prefixes": (filtered(("prefix", "a"), ("prefix", "b")), "InvalidArgument", "one prefix"),
    "two prefixes, one in capitals": (filtered(("prefix", "a"), ("Prefix", "b")), "InvalidArgument", "one prefix"),
    "two suffixes": (filtered(("suffix", "a"), ("suffix", "b")), "InvalidArgument", "one suffix"),
    "a filter longer than a key": (filtered(("prefix", "é" * 2049)), "InvalidArgument", "too long"),
    "a segment of two dots": (filtered(("suffix", "a/../b")), "InvalidArgument", "path segment"),
    "the same rule twice": (queue() + queue(), "InvalidArgument", "overlapping prefixes"),
    "a topic": (f"<TopicConfiguration><Topic>{ARN}</Topic>{PUT}</TopicConfiguration>", "UnsupportedNotification", ""),
    "a function": ("<CloudFunctionConfiguration/>", "UnsupportedNotification", ""),
    "EventBridge": ("<EventBridgeConfiguration/>", "UnsupportedNotification", "leave out EventBridgeConfiguration"),
    "EventBridge beside a queue": (f"{queue()}<EventBridgeConfiguration/>", "UnsupportedNotification", "EventBridge"),
    "a Lambda": ("<LambdaFunctionConfiguration/>", "UnsupportedNotification", "leave out Lambda"),
}


def block(element: str, *rules: tuple[str, str], more: str = "") -> str:
    inner = "".join(
        f"<FilterRule><Name>{name}</Name><Value>{value}</Value>{more}</FilterRule>" for name, value in rules
    )
    return f"<{element}>{inner}</{element}>"


def with_filter(*blocks: str, rule_id: str = "1") -> str:
    return queue(f"{PUT}<Filter>{''.join(blocks)}</Filter>").replace("<Id>1<", f"<Id>{rule_id}<")
