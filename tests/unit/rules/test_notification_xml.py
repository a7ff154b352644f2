"""The notification XML both ways, and every row of reference §2.3 that a document alone decides."""

from __future__ import annotations

from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.arn import TargetId
from app.rules.model import Rule
from app.rules.notification_xml import NAMESPACE, BadConfiguration, configuration, parse_configuration

ARN = "arn:minio:sqs::cache:redis"
TARGET = TargetId("redis", "cache")
PUT = "<Event>s3:ObjectCreated:Put</Event>"


def queue(inner: str = PUT, arn: str = ARN) -> str:
    return f"<QueueConfiguration><Id>1</Id><Queue>{arn}</Queue>{inner}</QueueConfiguration>"


def filtered(*rules: tuple[str, str]) -> str:
    inner = "".join(f"<FilterRule><Name>{name}</Name><Value>{value}</Value></FilterRule>" for name, value in rules)
    return queue(f"{PUT}<Filter><S3Key>{inner}</S3Key></Filter>")


def parsed(inner: str, region: str = "") -> list[Rule]:
    body = f'<NotificationConfiguration xmlns="{NAMESPACE}">{inner}</NotificationConfiguration>'.encode()
    return parse_configuration(body, "images", region=region, configured=[TARGET])


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
    "elements that nobody knows": ("<EventBridgeConfiguration/><LambdaFunctionConfiguration/>", 0),
    "an empty filter value": (filtered(("prefix", "")), 1),
    "a backslash": (filtered(("prefix", "a\\b")), 1),
    "half a segment": (filtered(("prefix", "logs/."), ("suffix", "../x")), 1),
    "a filter of 2,000 bytes": (filtered(("prefix", "x" * 2000)), 1),
    "an id of 300 characters": (queue().replace("<Id>1<", f"<Id>{'i' * 300}<"), 1),
    "a prefix and a suffix": (filtered(("prefix", "a b/"), ("suffix", ".jpg ")), 1),
}


@pytest.mark.parametrize(("inner", "count"), TAKEN.values(), ids=TAKEN)
def test_what_minio_takes_is_taken(inner: str, count: int) -> None:
    assert len(parsed(inner)) == count


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
    "a filter by regex": (filtered(("regex", "a")), "InvalidArgument", "prefix or suffix"),
    "a filter by Prefix": (filtered(("Prefix", "a")), "InvalidArgument", "prefix or suffix"),
    "two prefixes": (filtered(("prefix", "a"), ("prefix", "b")), "InvalidArgument", "one prefix"),
    "two suffixes": (filtered(("suffix", "a"), ("suffix", "b")), "InvalidArgument", "one suffix"),
    "a filter longer than a key": (filtered(("prefix", "é" * 2049)), "InvalidArgument", "too long"),
    "a segment of two dots": (filtered(("suffix", "a/../b")), "InvalidArgument", "path segment"),
    "the same rule twice": (queue() + queue(), "InvalidArgument", "overlapping prefixes"),
    "a topic": (f"<TopicConfiguration><Topic>{ARN}</Topic>{PUT}</TopicConfiguration>", "UnsupportedNotification", ""),
    "a function": ("<CloudFunctionConfiguration/>", "UnsupportedNotification", ""),
}


@pytest.mark.parametrize(("inner", "code", "words"), REFUSED.values(), ids=REFUSED)
def test_what_minio_refuses_is_refused_with_its_code(inner: str, code: str, words: str) -> None:
    with pytest.raises(BadConfiguration) as refused:
        parsed(inner)
    assert refused.value.code == code
    assert words in str(refused.value)


def test_the_region_of_an_arn_must_be_the_sites_if_both_have_one() -> None:
    assert parsed(queue(arn="arn:minio:sqs:eu-1:cache:redis"), "eu-1")[0].target == TARGET
    assert parsed(queue(), "eu-1")[0].target == TARGET
    with pytest.raises(BadConfiguration, match="different region"):
        parsed(queue(arn="arn:minio:sqs:eu-2:cache:redis"), "eu-1")


def test_a_name_in_another_case_is_pointed_out() -> None:
    with pytest.raises(BadConfiguration, match=r"did you mean arn:minio:sqs:eu-1:cache:redis\?"):
        parsed(queue(arn="arn:minio:sqs::CACHE:redis"), "eu-1")


BOMB = (
    b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><NotificationConfiguration>&b;</NotificationConfiguration>'
)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"<NotificationConfiguration>",
        b"<Other/>",
        b'<?xml version="1.0" encoding="klingon"?><NotificationConfiguration/>',
        b"<NotificationConfiguration>\xff</NotificationConfiguration>",
        BOMB,
        b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><NotificationConfiguration/>',
    ],
)
def test_what_is_no_such_document_is_malformed(body: bytes) -> None:
    with pytest.raises(BadConfiguration) as refused:
        parse_configuration(body, "images", region="", configured=[TARGET])
    assert refused.value.code == "MalformedXML"


def test_a_document_is_read_in_whatever_namespace() -> None:
    for opening in ("<NotificationConfiguration>", '<NotificationConfiguration xmlns="urn:other">'):
        body = f"{opening}{queue()}</NotificationConfiguration>".encode()
        assert len(parse_configuration(body, "images", region="", configured=[TARGET])) == 1


def test_members_stand_in_minios_order_and_an_empty_filter_is_left_out() -> None:
    full = Rule(bucket="b", events=("s3:ObjectCreated:*", "*"), target=TARGET, prefix="p/", suffix=".x", rule_id="one")
    bare = Rule(bucket="b", events=("s3:ObjectRemoved:*",), target=TARGET)
    first, second = fromstring(configuration([full, bare], "eu-1"))
    assert [child.tag.rpartition("}")[2] for child in first] == ["Id", "Filter", "Event", "Event", "Queue"]
    assert [child.tag.rpartition("}")[2] for child in second] == ["Id", "Event", "Queue"]
    assert first[-1].text == "arn:minio:sqs:eu-1:cache:redis"
    assert second[0].text in (None, "")


def test_filters_stay_in_the_order_in_which_they_came_and_empty_ones_stay() -> None:
    for filters in ((("suffix", ".x"), ("prefix", "p/")), (("suffix", ".x"), ("prefix", "")), (("prefix", ""),), ()):
        rules = parsed(filtered(*filters))
        root = fromstring(configuration(rules, ""))
        rows = root.findall(".//{*}FilterRule")
        assert [(row.findtext("{*}Name"), row.findtext("{*}Value") or "") for row in rows] == list(filters)
        assert len(root.findall(".//{*}Filter")) == bool(filters)


def test_the_order_of_the_filters_makes_no_other_rule() -> None:
    one, other = ("prefix", "a"), ("suffix", "b")
    with pytest.raises(BadConfiguration, match="the same in all members"):
        parsed(filtered(one, other) + filtered(other, one))


def test_no_rules_are_an_empty_element() -> None:
    said = b'<?xml version="1.0" encoding="UTF-8"?>\n<NotificationConfiguration xmlns="%s"></NotificationConfiguration>'
    assert configuration([], "") == said % NAMESPACE.encode()


VALUES = st.text(st.characters(exclude_characters="/.", exclude_categories=["Cs", "Cc"]), max_size=30)


RULES = st.builds(
    Rule,
    bucket=st.just("images"),
    events=st.just(("s3:ObjectCreated:*",)),
    target=st.just(TARGET),
    prefix=VALUES,
    suffix=VALUES,
    rule_id=VALUES,
)


@given(st.lists(RULES, unique=True))
def test_rules_that_are_written_are_read_again(rules: list[Rule]) -> None:
    body = configuration(rules, "")
    assert parse_configuration(body, "images", region="", configured=[TARGET]) == rules


def test_what_xml_cannot_hold_leaves_the_document_readable() -> None:
    odd = Rule(bucket="images", events=("*",), target=TARGET, prefix="a\x01\ud800b\uffff")
    [rule] = parse_configuration(configuration([odd], ""), "images", region="", configured=[TARGET])
    assert rule.prefix == "a\ufffd\ufffdb\ufffd"
