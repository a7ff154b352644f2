"""Parse the entries of a listing's pages: botocore needs ten times as long for them as for the request itself.

What is left of an answer botocore parses, errors included. An entry that lacks what S3 says of each ends the job.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

from botocore.utils import parse_timestamp

from spark_jobs.errors import BadListing


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return parse_timestamp(text)  # type: ignore[no-any-return]  # botocore ships no types
    return time if time.tzinfo else time.replace(tzinfo=UTC)


_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_EVENTS = ("before-parse.s3.ListObjectsV2", "before-parse.s3.ListObjectVersions")
_OF_AN_OBJECT, _OF_A_MARKER = ("Key", "LastModified", "Size"), ("Key",)
_OF_OBJECTS_ONLY = ("Size", "ETag")
_BOOLEANS = {"true": True, "false": False}
# Element: the member of botocore's answer, and what its text stands for.
_ENTRIES = {"Contents": "Contents", "Version": "Versions", "DeleteMarker": "DeleteMarkers"}
_VALUES: Mapping[str, Callable[[str], Any]] = {
    "Key": str, "LastModified": _time, "ETag": str, "Size": int, "VersionId": str,
    "IsLatest": lambda text: _BOOLEANS[text.lower()],
}  # fmt: skip


def register(client: Any) -> None:
    """Have a client of S3 return entries with `Key`, `LastModified`, `ETag`, `Size`, `VersionId`, `IsLatest` only."""
    for event in _EVENTS:
        client.meta.events.register(event, _parse)


def _parse(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] != 200:
        return
    try:
        root = ElementTree.fromstring(response_dict["body"])  # noqa: S314 - expat refuses what grows
    except ElementTree.ParseError:
        return  # botocore says what is wrong
    members: dict[str, list[dict[str, Any]]] = {}
    others = []
    for element in root:
        name = _ENTRIES.get(_local(element.tag))
        if name is None:
            others.append(element)
        else:
            members.setdefault(name, []).append(_entry(element))
    if members:
        root[:] = others
        customized_response_dict.update(members)
        ElementTree.register_namespace("", _NAMESPACE)
        response_dict["body"] = ElementTree.tostring(root)


def _entry(element: ElementTree.Element) -> dict[str, Any]:
    entry, is_marker = {}, _local(element.tag) == "DeleteMarker"
    for child in element:
        name = _local(child.tag)
        # MinIO gives a marker a size and an ETag; a marker is known by having none.
        read = None if is_marker and name in _OF_OBJECTS_ONLY else _VALUES.get(name)
        if read is not None:
            try:
                entry[name] = read(child.text or "")
            except (ValueError, KeyError):
                raise BadListing(f"an entry of the listing has {child.text!r:.100} as its {name}") from None
    needed = _OF_A_MARKER if is_marker else _OF_AN_OBJECT
    if missing := [name for name in needed if name not in entry]:
        raise BadListing(f"an entry of the listing, {entry.get('Key', '')!r:.100}, has no {', '.join(missing)}")
    return entry


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
