"""Parse and write a bucket's rules as the XML of S3 (reference §2.1), with every error of §2.3.

Beside S3's prefix and suffix, `Filter` may have what Ceph has: `regex` in `S3Key`, and `S3Metadata` and `S3Tags` with
names and values. `S3Size`, with `min` and `max`, is our own. XML is parsed without entities and document types, so that
a body can neither expand nor fetch anything.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import Element, ParseError, SubElement, tostring

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from app.config.arn import TargetId, differing_in_case, parse_arn
from app.config.errors import BadSettings, BadValue
from app.rules.filters import NO_FILTERS, Filters, Pairs, parse_filters
from app.rules.model import PREFIX_AND_SUFFIX, Rule, event_names, problems_of

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
# Destinations that would get nothing; the last two are ignored by MinIO.
_UNSUPPORTED = (
    "TopicConfiguration", "CloudFunctionConfiguration", "LambdaFunctionConfiguration", "EventBridgeConfiguration",
)  # fmt: skip
_KEY_FILTERS = ("prefix", "suffix", "regex")
# The blocks of `Filter` that clients of S3 do not know, in the order in which they are written.
_METADATA, _TAGS, _SIZE = "S3Metadata", "S3Tags", "S3Size"
_SIZES = {"min": "min_size", "max": "max_size"}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

MALFORMED = "The XML you provided was not well-formed or did not validate against our published schema"
NO_EVENT = "A specified event is not supported for notifications"
OVERLAPPING = "Configurations overlap. Configurations on the same bucket cannot share a common event type"
NO_TARGET = "A specified destination ARN does not exist or is not well-formed. Verify the destination ARN"
OTHER_REGION = (
    "A specified destination is in a different region than the bucket. "
    "You must use a destination that resides in the same region as the bucket"
)
NO_FILTER = "filter rule name must be prefix, suffix or regex"
SAME_RULES = (
    "An object key name filtering rule defined with overlapping prefixes, overlapping suffixes, "
    "or overlapping combinations of prefixes and suffixes for the same event types"
)
QUEUES_ONLY = "Only queue notifications are supported, not those of topics, functions and EventBridge"


class BadConfiguration(ValueError):
    """A refused document: the S3 error code (with status 400), and MinIO's message followed by our detail."""

    def __init__(self, code: str, message: str, detail: str = "") -> None:
        super().__init__(f"{message}: {detail}" if detail else f"{message}.")
        self.code = code


def parse_configuration(
    body: bytes, bucket: str, *, region: str, configured: Collection[TargetId], stored: Iterable[Rule] = ()
) -> list[Rule]:
    """Parse the rules of a document; an empty document has none. Raises `BadConfiguration`.

    `region` is the site's, "" for none; `configured` are the targets that exist. Unknown elements are ignored, as in
    MinIO (§2.1). Stricter than MinIO in one point: filter values are checked (§10).

    `stored` are the bucket's rules. A rule of the document without any of the elements `S3Metadata`, `S3Tags` and
    `S3Size` keeps those filters if it is stored with them and equal otherwise: a client that does not know them, such
    as `mc`, reads the rules, adds one, and writes all of them. An empty element removes the filters.
    """
    try:
        root = fromstring(body, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError):  # LookupError: unknown encoding
        raise BadConfiguration("MalformedXML", MALFORMED) from None
    if _name(root) != "NotificationConfiguration":
        raise BadConfiguration("MalformedXML", MALFORMED, "the outermost element must be NotificationConfiguration")
    elements = list(_children(root, "QueueConfiguration"))
    rules = [_parse_rule(element, bucket, region) for element in elements]
    rules = _with_unmentioned_filters(rules, [_mentions_filters(element) for element in elements], stored)
    seen = set()
    for rule in rules:
        if rule.target not in configured:
            twin = differing_in_case(rule.target, configured)
            hint = f"; did you mean {twin.arn(region)}?" if twin else ""
            raise BadConfiguration("InvalidArgument", NO_TARGET, f"there is no target {rule.target.arn(region)}{hint}")
        if rule in seen:
            raise BadConfiguration("InvalidArgument", SAME_RULES, "two rules are the same in all members")
        seen.add(rule)
    unsupported = next((name for child in root if (name := _name(child)) in _UNSUPPORTED), None)
    if unsupported is not None:
        raise BadConfiguration("UnsupportedNotification", QUEUES_ONLY, f"leave out {unsupported}")
    return rules


def configuration(rules: Iterable[Rule], region: str) -> bytes:
    """Write a bucket's rules as a document, everything in the client's order, with the site's region in ARNs."""
    root = Element("NotificationConfiguration", xmlns=NAMESPACE)
    for rule in rules:
        element = SubElement(root, "QueueConfiguration")
        add(element, "Id", rule.rule_id)
        blocks = _filter_blocks(rule)
        if blocks:
            outer = SubElement(element, "Filter")
            for block, values in blocks.items():
                inner = SubElement(outer, block)
                for name, value in values.items():
                    filter_rule = SubElement(inner, "FilterRule")
                    add(filter_rule, "Name", name)
                    add(filter_rule, "Value", value)
        for name in rule.events:
            add(element, "Event", name)
        add(element, "Queue", rule.target.arn(region))
    return document(root)


def document(root: Element) -> bytes:
    """Serialize an XML document as S3 sends it."""
    # As Go's encoder: a parser takes a bare carriage return for a line feed, and a client writes back what it has read.
    written: bytes = tostring(root, "utf-8", short_empty_elements=False).replace(b"\r", b"&#xD;")
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + written


def add(parent: Element, name: str, text: str) -> None:
    """Add an element with this text; a character that XML does not allow becomes U+FFFD, as in Go's encoder."""
    SubElement(parent, name).text = _NOT_XML.sub("\ufffd", text)


def _filter_blocks(rule: Rule) -> dict[str, Mapping[str, str]]:
    """Return the elements of a rule's `Filter`, each with its names and values; without those that have none."""
    filters = rule.filters
    sizes = {name: str(size) for name, member in _SIZES.items() if (size := getattr(filters, member)) is not None}
    blocks = {"S3Key": rule.key_filters, _METADATA: filters.metadata, _TAGS: filters.tags, _SIZE: sizes}
    return {block: values for block, values in blocks.items() if values}


def _with_unmentioned_filters(rules: Sequence[Rule], mentions: Sequence[bool], stored: Iterable[Rule]) -> list[Rule]:
    """Return the rules; those that mention none of the newer filters with the filters that they are stored with."""
    complete = Counter(rule for rule, mentioned in zip(rules, mentions, strict=True) if mentioned)
    unclaimed: dict[Rule, list[Rule]] = defaultdict(list)  # by what a client of S3 sees, newest first
    for rule in reversed(list(stored)):
        if complete[rule]:
            complete[rule] -= 1
        else:
            unclaimed[_as_seen_by_s3(rule)].append(rule)
    kept = []
    for rule, mentioned in zip(rules, mentions, strict=True):
        same = [] if mentioned else unclaimed.get(rule, [])
        kept.append(replace(rule, filters=same.pop().filters) if same else rule)
    return kept


def _as_seen_by_s3(rule: Rule) -> Rule:
    """Return the rule as a client sees it that knows the elements of S3 only."""
    return replace(rule, filters=replace(NO_FILTERS, regex=rule.filters.regex))


def _parse_rule(element: Element, bucket: str, region: str) -> Rule:
    events = tuple(child.text or "" for child in _children(element, "Event"))
    if not events:
        raise BadConfiguration("MalformedXML", MALFORMED, "a QueueConfiguration has no Event")
    for number, name in enumerate(events):
        if not event_names(name):
            raise BadConfiguration("InvalidArgument", NO_EVENT, name)
        if name in events[:number]:
            raise BadConfiguration("InvalidArgument", OVERLAPPING, f"{name} is given twice in one rule")
    key_filters = _parse_key_filters(element)
    rule = Rule(
        bucket=bucket,
        events=events,
        target=_parse_queue(_text(element, "Queue"), region),
        prefix=key_filters.get("prefix", ""),
        suffix=key_filters.get("suffix", ""),
        rule_id=_text(element, "Id"),
        filters=_parse_filters(element, key_filters.get("regex", "")),
        filter_names=tuple(key_filters),
    )
    for problem in problems_of(rule):
        raise BadConfiguration("InvalidArgument", "A value cannot be used", str(problem))
    return rule


def _parse_queue(arn: str, region: str) -> TargetId:
    try:
        arn_region, target = parse_arn(arn)
    except BadValue as error:
        raise BadConfiguration("InvalidArgument", NO_TARGET, f"{arn} {error.problem}") from None
    if arn_region and region and arn_region != region:
        raise BadConfiguration("InvalidArgument", OTHER_REGION, f"this is {region}")
    return target


def _parse_key_filters(element: Element) -> dict[str, str]:
    filters: dict[str, str] = {}
    for given, value in _filter_rules(element, "S3Key"):
        # AWS answers `Prefix` and `Suffix`, whatever it was given, and clients write back what they have read.
        name = given.lower() if given.lower() in PREFIX_AND_SUFFIX else given
        if name not in _KEY_FILTERS:
            raise BadConfiguration("InvalidArgument", NO_FILTER, f"{name!r} is none of them")
        if name in filters:
            raise BadConfiguration("InvalidArgument", f"Cannot specify more than one {name} rule in a filter")
        filters[name] = value
    return filters


def _parse_filters(element: Element, regex: str) -> Filters:
    members: dict[str, Any] = {"regex": regex}
    for block, member in ((_METADATA, "metadata"), (_TAGS, "tags")):
        pairs = Pairs()
        for name, value in _filter_rules(element, block):
            if name in pairs:
                raise BadConfiguration("InvalidArgument", f"Cannot specify {name!r} twice in {block}")
            pairs[name] = value
        members[member] = pairs
    for name, value in _filter_rules(element, _SIZE):
        if name not in _SIZES or _SIZES[name] in members:
            raise BadConfiguration("InvalidArgument", f"{_SIZE} has min and max, each at most once", f"{name!r}")
        members[_SIZES[name]] = value
    try:
        return parse_filters(members)
    except BadSettings as error:
        raise BadConfiguration("InvalidArgument", "A value cannot be used", str(error)) from None


def _filter_rules(element: Element, block: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each filter rule in the blocks of this name. Raises `BadConfiguration`.

    Ceph can also negate a filter rule; to ignore that would send exactly the events that are not wanted.
    """
    for outer in _children(element, "Filter"):
        for inner in _children(outer, block):
            for filter_rule in _children(inner, "FilterRule"):
                if _text(filter_rule, "Type") not in ("", "IN"):
                    raise BadConfiguration("InvalidArgument", "A filter rule cannot be negated", "its Type can be IN")
                yield _text(filter_rule, "Name"), _text(filter_rule, "Value")


def _mentions_filters(element: Element) -> bool:
    blocks = (_METADATA, _TAGS, _SIZE)
    return any(True for outer in _children(element, "Filter") for block in blocks for _ in _children(outer, block))


def _text(element: Element, name: str) -> str:
    return next((child.text or "" for child in _children(element, name)), "")


def _children(element: Element, name: str) -> Iterator[Element]:
    """Yield children by local name: documents have S3's namespace, another one, or none."""
    return (child for child in element if _name(child) == name)


def _name(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]
