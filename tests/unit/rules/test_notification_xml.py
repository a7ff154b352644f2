"""The notification XML both ways, and every row of reference §2.3 that a document alone decides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.arn import TargetId
from app.rules.filters import Filters, Pairs
from app.rules.model import Rule
from app.rules.notification_xml import NAMESPACE, BadConfiguration, configuration, parse_configuration
from tests.support.notification_xml import REFUSED, TAKEN, block, filtered, queue, with_filter

TARGET = TargetId("redis", "cache")


def parsed(inner: str, region: str = "", stored: Sequence[Rule] = ()) -> list[Rule]:
    body = f'<NotificationConfiguration xmlns="{NAMESPACE}">{inner}</NotificationConfiguration>'.encode()
    return parse_configuration(body, "images", region=region, configured=[TARGET], stored=stored)


@pytest.mark.parametrize(("inner", "count"), TAKEN.values(), ids=TAKEN)
def test_what_minio_takes_is_taken(inner: str, count: int) -> None:
    assert len(parsed(inner)) == count


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


def test_filters_in_capitals_are_those_of_the_key_and_come_back_in_lower_case() -> None:
    [rule] = parsed(filtered(("Suffix", ".JPG"), ("PREFIX", "In/")))
    assert (rule.prefix, rule.suffix, rule.filter_names) == ("In/", ".JPG", ("suffix", "prefix"))
    assert parsed(filtered(("suffix", ".JPG"), ("prefix", "In/"))) == [rule]
    assert b"<Name>suffix</Name>" in configuration([rule], "")


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


CEPHS = (
    block("S3Key", ("regex", "([0-9a-z]+)[.]jpg"), ("suffix", ".jpg")),
    block("S3Metadata", ("x-amz-meta-b", "1"), ("x-amz-meta-a", "2")),
    block("S3Tags", ("team", "blue"), ("stage", "prod")),
)


def test_the_filters_of_ceph_are_read_and_written_in_the_clients_order() -> None:
    [rule] = parsed(with_filter(*CEPHS, block("S3Size", ("max", "9"), ("min", "8"))))
    assert rule.filters.members == {
        "regex": "([0-9a-z]+)[.]jpg",
        "metadata": {"x-amz-meta-b": "1", "x-amz-meta-a": "2"},
        "tags": {"team": "blue", "stage": "prod"},
        "min_size": 8,
        "max_size": 9,
    }
    written = configuration([rule], "").decode()
    assert f"<Filter>{''.join(CEPHS)}{block('S3Size', ('min', '8'), ('max', '9'))}</Filter>" in written
    assert configuration(parse_configuration(written.encode(), "images", region="", configured=[TARGET]), "") == (
        written.encode()
    )


def test_the_kind_of_a_filter_rule_that_ceph_writes_is_taken_and_a_negated_one_refused() -> None:
    [rule] = parsed(with_filter(block("S3Tags", ("team", "blue"), more="<Type>IN</Type>")))
    assert rule.filters.tags == {"team": "blue"}
    for element, name in (("S3Tags", "team"), ("S3Metadata", "a"), ("S3Key", "prefix")):
        with pytest.raises(BadConfiguration, match="cannot be negated"):
            parsed(with_filter(block(element, (name, "x"), more="<Type>OUT</Type>")))


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        (block("S3Key", ("regex", "(?=a)")), "not a regular expression"),
        (block("S3Key", ("regex", "a"), ("regex", "b")), "one regex"),
        (block("S3Tags", ("a", "1"), ("a", "2")), "twice"),
        (block("S3Metadata", ("a", "1"), ("A", "2")), "twice"),
        (block("S3Metadata", ("", "1")), "without a name"),
        (block("S3Size", ("min", "2"), ("max", "1")), "more than max_size"),
        (block("S3Size", ("min", "1"), ("min", "1")), "at most once"),
        (block("S3Size", ("least", "1")), "min and max"),
        (block("S3Size", ("min", "")), "not a size"),
        (block("S3Size", ("min", "-1")), "not a size"),
    ],
)
def test_a_filter_that_cannot_be_is_refused(blocks: str, words: str) -> None:
    with pytest.raises(BadConfiguration, match=words) as refused:
        parsed(with_filter(blocks))
    assert refused.value.code == "InvalidArgument"


def test_a_client_that_does_not_know_the_filters_does_not_remove_them() -> None:
    """`mc event add` reads all rules of a bucket, adds one, and writes all of them."""
    stored = parsed(with_filter(*CEPHS) + with_filter(CEPHS[2], rule_id="2") + queue().replace("<Id>1<", "<Id>3<"))
    as_mc = with_filter(CEPHS[0]) + queue().replace("<Id>1<", "<Id>2<") + queue().replace("<Id>1<", "<Id>3<")
    added = filtered(("suffix", ".png"))
    assert parsed(as_mc, stored=stored) == stored
    assert parsed(added + as_mc, stored=stored) == parsed(added) + stored
    assert parsed(queue().replace("<Id>1<", "<Id>2<"), stored=stored) == stored[1:2]
    # What differs in anything else is another rule.
    assert not parsed(queue().replace("<Id>1<", "<Id>4<"), stored=stored)[0].filters


def test_rules_that_differ_in_such_filters_alone_are_each_kept() -> None:
    tags = [block("S3Tags", ("team", team)) for team in ("red", "blue", "green")]
    stored = parsed("".join(map(with_filter, tags)))
    assert parsed(queue() * 3, stored=stored) == stored
    [kept, changed] = parsed(with_filter(tags[0]) + queue(), stored=stored)
    assert (kept, changed) == (stored[0], stored[1])


def test_an_empty_element_removes_the_filters() -> None:
    stored = parsed(with_filter(*CEPHS))
    for empty in ("<S3Tags/>", "<S3Metadata></S3Metadata>", "<S3Size/>"):
        [rule] = parsed(with_filter(CEPHS[0], empty), stored=stored)
        assert rule.filters == Filters(regex="([0-9a-z]+)[.]jpg")


VALUES = st.text(st.characters(exclude_characters="/.", exclude_categories=["Cs", "Cc", "Cn"]), max_size=30)


RULES = st.builds(
    Rule,
    bucket=st.just("images"),
    events=st.just(("s3:ObjectCreated:*",)),
    target=st.just(TARGET),
    prefix=VALUES,
    suffix=VALUES,
    rule_id=VALUES,
    filters=st.builds(
        Filters,
        regex=VALUES.map(re.escape),
        metadata=st.dictionaries(VALUES.filter(bool), VALUES, max_size=1).map(Pairs),
        tags=st.dictionaries(VALUES.filter(bool), VALUES, max_size=3).map(Pairs),
        min_size=st.none() | st.integers(0, 5),
        max_size=st.none() | st.integers(5, 2**53),
    ),
)


@given(st.lists(RULES, unique=True))
def test_rules_that_are_written_are_read_again(rules: list[Rule]) -> None:
    body = configuration(rules, "")
    assert parse_configuration(body, "images", region="", configured=[TARGET]) == rules


def test_what_xml_cannot_hold_leaves_the_document_readable() -> None:
    odd = Rule(bucket="images", events=("*",), target=TARGET, prefix="a\x01\ud800b\uffff")
    [rule] = parse_configuration(configuration([odd], ""), "images", region="", configured=[TARGET])
    assert rule.prefix == "a\ufffd\ufffdb\ufffd"


def test_line_breaks_of_any_kind_survive_a_client_that_writes_back_what_it_has_read() -> None:
    rule = Rule(bucket="images", events=("*",), target=TARGET, prefix="a\rb\r\n", filters=Filters(regex="a\n\t\r.*"))
    assert parse_configuration(configuration([rule], ""), "images", region="", configured=[TARGET]) == [rule]
