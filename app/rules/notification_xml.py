"""Parse and write a bucket's rules as the XML of S3 (reference §2.1), with every error of §2.3.

XML is parsed without entities and document types, so that a body can neither expand nor fetch anything.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from xml.etree.ElementTree import Element, ParseError, SubElement, tostring

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from app.config.arn import TargetId, differing_in_case, parse_arn
from app.config.errors import BadValue
from app.rules.model import FILTERS, Rule, event_names, problems_of

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_UNSUPPORTED = ("TopicConfiguration", "CloudFunctionConfiguration")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

MALFORMED = "The XML you provided was not well-formed or did not validate against our published schema"
NO_EVENT = "A specified event is not supported for notifications"
OVERLAPPING = "Configurations overlap. Configurations on the same bucket cannot share a common event type"
NO_TARGET = "A specified destination ARN does not exist or is not well-formed. Verify the destination ARN"
OTHER_REGION = (
    "A specified destination is in a different region than the bucket. "
    "You must use a destination that resides in the same region as the bucket"
)
NO_FILTER = "filter rule name must be either prefix or suffix"
SAME_RULES = (
    "An object key name filtering rule defined with overlapping prefixes, overlapping suffixes, "
    "or overlapping combinations of prefixes and suffixes for the same event types"
)
QUEUES_ONLY = "Only queue notifications are supported, not those of topics and functions"


class BadConfiguration(ValueError):
    """A refused document: the S3 error code (with status 400), and MinIO's message followed by our detail."""

    def __init__(self, code: str, message: str, detail: str = "") -> None:
        super().__init__(f"{message}: {detail}" if detail else f"{message}.")
        self.code = code


def parse_configuration(body: bytes, bucket: str, *, region: str, configured: Collection[TargetId]) -> list[Rule]:
    """Parse the rules of a document; an empty document has none. Raises `BadConfiguration`.

    `region` is the site's, "" for none; `configured` are the targets that exist. Unknown elements are ignored, as in
    MinIO (§2.1). Stricter than MinIO in one point: filter values are checked (§10).
    """
    try:
        root = fromstring(body, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError):  # LookupError: unknown encoding
        raise BadConfiguration("MalformedXML", MALFORMED) from None
    if _name(root) != "NotificationConfiguration":
        raise BadConfiguration("MalformedXML", MALFORMED, "the outermost element must be NotificationConfiguration")
    rules = [_parse_rule(element, bucket, region) for element in _children(root, "QueueConfiguration")]
    seen = set()
    for rule in rules:
        if rule.target not in configured:
            twin = differing_in_case(rule.target, configured)
            hint = f"; did you mean {twin.arn(region)}?" if twin else ""
            raise BadConfiguration("InvalidArgument", NO_TARGET, f"there is no target {rule.target.arn(region)}{hint}")
        if rule in seen:
            raise BadConfiguration("InvalidArgument", SAME_RULES, "two rules are the same in all members")
        seen.add(rule)
    if any(_name(child) in _UNSUPPORTED for child in root):
        raise BadConfiguration("UnsupportedNotification", QUEUES_ONLY)
    return rules


def configuration(rules: Iterable[Rule], region: str) -> bytes:
    """Write a bucket's rules as a document, everything in the client's order, with the site's region in ARNs."""
    root = Element("NotificationConfiguration", xmlns=NAMESPACE)
    for rule in rules:
        element = SubElement(root, "QueueConfiguration")
        add(element, "Id", rule.rule_id)
        if rule.filters:
            key = SubElement(SubElement(element, "Filter"), "S3Key")
            for name, value in rule.filters.items():
                filter_rule = SubElement(key, "FilterRule")
                add(filter_rule, "Name", name)
                add(filter_rule, "Value", value)
        for name in rule.events:
            add(element, "Event", name)
        add(element, "Queue", rule.target.arn(region))
    return document(root)


def document(root: Element) -> bytes:
    """Serialize an XML document as S3 sends it."""
    written: bytes = tostring(root, "utf-8", short_empty_elements=False)
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + written


def add(parent: Element, name: str, text: str) -> None:
    """Add an element with this text; a character that XML does not allow becomes U+FFFD, as in Go's encoder."""
    SubElement(parent, name).text = _NOT_XML.sub("\ufffd", text)


def _parse_rule(element: Element, bucket: str, region: str) -> Rule:
    events = tuple(child.text or "" for child in _children(element, "Event"))
    if not events:
        raise BadConfiguration("MalformedXML", MALFORMED, "a QueueConfiguration has no Event")
    for number, name in enumerate(events):
        if not event_names(name):
            raise BadConfiguration("InvalidArgument", NO_EVENT, name)
        if name in events[:number]:
            raise BadConfiguration("InvalidArgument", OVERLAPPING, f"{name} is given twice in one rule")
    filters = _parse_filters(element)
    rule = Rule(
        bucket=bucket,
        events=events,
        target=_parse_queue(_text(element, "Queue"), region),
        prefix=filters.get("prefix", ""),
        suffix=filters.get("suffix", ""),
        rule_id=_text(element, "Id"),
        filter_names=tuple(filters),
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


def _parse_filters(element: Element) -> dict[str, str]:
    filters: dict[str, str] = {}
    for outer in _children(element, "Filter"):
        for key in _children(outer, "S3Key"):
            for filter_rule in _children(key, "FilterRule"):
                name = _text(filter_rule, "Name")
                if name not in FILTERS:
                    raise BadConfiguration("InvalidArgument", NO_FILTER, f"{name!r} is neither")
                if name in filters:
                    raise BadConfiguration("InvalidArgument", f"Cannot specify more than one {name} rule in a filter")
                filters[name] = _text(filter_rule, "Value")
    return filters


def _text(element: Element, name: str) -> str:
    return next((child.text or "" for child in _children(element, name)), "")


def _children(element: Element, name: str) -> Iterator[Element]:
    """Yield children by local name: documents have S3's namespace, another one, or none."""
    return (child for child in element if _name(child) == name)


def _name(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]
