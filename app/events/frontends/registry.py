"""Every frontend by name, those without rules of their own, and which of them sent a record (§14.1).

The key's encoding and the order of events follow from the sender, never from the characters of a key or a sequencer.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from app.events.errors import BadRecord
from app.events.frontends import (
    aws,
    azure,
    b2,
    ceph,
    eventbridge,
    gcs,
    noobaa,
    oci,
    ozone,
    r2,
    seaweedfs,
    tigris,
    unknown,
    versity,
)
from app.events.frontends.frontend import Frontend, as_sent, normalize_raw, unordered
from app.events.order import comparable

_OWN_SOURCES = "bucketwire:"  # what they begin with: repairs, backfills, scans, tests, events of the service

# MinIO, also before 2018, and its forks, such as SILO, which call themselves `minio:s3` (§1.4). Keys are form-encoded,
# and the sequencer is the object's modification time in nanoseconds (§1.7). Tags and accesses repeat the sequencer of
# the object's creation. Bucketwire's own events have the same form.
MINIO = Frontend("minio", as_sent)
# MinIO's form in every respect; it encodes more or fewer characters of a key, which decodes to the same.
RUSTFS = Frontend("rustfs", as_sent)
# Scality Zenko and Artesca (Backbeat): raw keys, sizes as text, null for what is not known, and no sequencer. Its
# queue's order is that of an object's events, so they are ordered by their arrival.
SCALITY = Frontend("scality", normalize_raw, unordered)
# NetApp StorageGRID: records of AWS's form under its own source, as JSON or as a call of SNS's action Publish.
STORAGEGRID = Frontend("storagegrid", aws.normalize)
# Storj: records of AWS's form with raw keys; a sequencer is the time of the commit in nanoseconds.
STORJ = Frontend("storj", normalize_raw)

# Those that a request may name.
S3_FRONTENDS: Mapping[str, Frontend] = {
    frontend.name: frontend
    for frontend in (
        MINIO, RUSTFS, ceph.CEPH, aws.AWS, versity.VERSITY, noobaa.NOOBAA, STORAGEGRID,
        SCALITY, ozone.OZONE, STORJ, unknown.RAW,
    )
}  # fmt: skip
# Those that have messages of their own, by which they are always recognised.
FRONTENDS: Mapping[str, Frontend] = dict(S3_FRONTENDS) | {
    frontend.name: frontend
    for frontend in (
        eventbridge.EVENTBRIDGE, seaweedfs.SEAWEEDFS, gcs.GCS, azure.AZURE, b2.B2, r2.R2, tigris.TIGRIS, oci.OCI,
    )
}  # fmt: skip
# Records that a MinIO-like service has passed on: in its envelope they have MinIO's form, whichever frontend sent them.
RELAYED: Mapping[str, Frontend] = {name: replace(frontend, normalize=as_sent) for name, frontend in FRONTENDS.items()}
_RELAYED_UNKNOWN = replace(unknown.UNKNOWN, normalize=as_sent)

_BY_SOURCE = {
    "minio:s3": MINIO,
    "rustfs:s3": RUSTFS,
    ceph.SOURCE: ceph.CEPH,
    noobaa.SOURCE: noobaa.NOOBAA,
    "sgws:s3": STORAGEGRID,
    "scality:s3": SCALITY,
    ozone.SOURCE: ozone.OZONE,
    "storj:s3": STORJ,
    # Of messages of their own, these records are what Bucketwire has made.
    **{
        made.SOURCE: RELAYED[name]
        for name, made in {
            "seaweedfs": seaweedfs, "gcs": gcs, "azure": azure, "b2": b2, "r2": r2, "tigris": tigris, "oci": oci,
        }.items()
    },
}  # fmt: skip


def recognize(record: Mapping[str, Any]) -> Frontend:
    """Return the frontend that sent a record of S3's form, by its source; `unknown` if nobody knows that.

    AWS, Versity, Ceph before Octopus and MinIO before 2018 all send `aws:s3`. Of the last two, only MinIO's and Ceph's
    names begin with `s3:` (§1.9, §13).
    """
    source = record.get("eventSource")
    if isinstance(source, str) and (frontend := _BY_SOURCE.get(source)) is not None:
        return frontend
    if source == aws.SOURCE:
        return _of_aws(record)
    if is_own(record):
        return MINIO
    if noobaa.matches(record):
        return noobaa.NOOBAA
    return unknown.UNKNOWN_ENCODING if unknown.is_guess(record) else unknown.UNKNOWN


def _of_aws(record: Mapping[str, Any]) -> Frontend:
    if versity.matches(record):
        return versity.VERSITY
    if ceph.matches(record):
        return ceph.CEPH
    name = record.get("eventName")
    return MINIO if isinstance(name, str) and name.startswith("s3:") else aws.AWS


def recognize_relayed(record: Mapping[str, Any]) -> Frontend:
    """Return the frontend that sent a record which a MinIO-like service has passed on in its envelope."""
    return RELAYED.get(recognize(record).name, _RELAYED_UNKNOWN)


def order_of(record: str) -> str:
    """Return the comparable value that orders a recorded event, from its record's JSON; "" for none."""
    members = orjson.loads(record)
    if not isinstance(members, dict):  # it stands for a record that is too long to be read
        return ""
    frontend = recognize(members)
    if members.get("eventSource") == aws.SOURCE and frontend is MINIO:
        frontend = aws.AWS  # recorded names begin with `s3:`; MinIO's own sequencers have another form than AWS's
    try:
        return comparable(frontend.order(members))
    except BadRecord:
        return ""


def is_own(record: Mapping[str, Any]) -> bool:
    """Return whether Bucketwire made the record: a repair, for example, which has MinIO's form with every frontend."""
    source = record.get("eventSource")
    return isinstance(source, str) and source.startswith(_OWN_SOURCES)


# What is in the JSON of a sender's records → the names of its events by which the removal of the newest version does
# not make the one beneath the newest.
HIDING = {ceph.OF_CEPH: (ceph.EXPIRED,), gcs.OF_GCS: gcs.OF_VERSIONS}


def hides_older(name: str, record: str) -> bool:
    """Return whether what is older than the event's version is hidden or gone once that version was removed."""
    return any(name in names and source in record for source, names in HIDING.items())
