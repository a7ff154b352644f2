"""The names of buckets: those that a storage allows, and those of a tenant, which are recorded as TENANT:BUCKET.

A tenant is a namespace of buckets, so that two buckets of one name are two. A source or a token gives it, or says that
each event's ARN does. An event's bucket name need not be one that a storage allows.
"""

import re
from collections.abc import Mapping
from typing import Any

from app.events.errors import BadRecord, excerpt

TENANT_OF_ARN = "arn"  # in place of a tenant: the one that the bucket's ARN of each event names, if it names one
TENANT_HINT = "use 1 to 64 letters, digits, _ - or ., the first a letter, a digit or _, and not bucketwire"

# The names that storages allow: AWS, MinIO, SeaweedFS and Garage today (3 to 63 lower-case letters, digits, dots,
# hyphens), AWS before 2018 and Ceph's relaxed mode (up to 255, also upper case and underscores). Without slash, space
# and a second colon, a name is never a path, an ARN or two words; without a hyphen or dot at the beginning, it is never
# an option or a hidden folder. Ceph's tenants have letters, digits and underscores.
_TENANT = re.compile(r"(?!bucketwire\Z)[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # `bucketwire:service` is a bucket of ours
_BUCKET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{2,254}")


def is_bucket_name(name: str) -> bool:
    """Return whether a storage allows a bucket of this name, which may begin with a tenant."""
    tenant, colon, bucket = name.rpartition(":")
    return _BUCKET.fullmatch(bucket) is not None and (not colon or is_tenant(tenant))


def is_tenant(text: str) -> bool:
    """Return whether this can be a tenant."""
    return _TENANT.fullmatch(text) is not None


def is_fixed(tenant: str) -> bool:
    """Return whether all that a source or token with this setting sends is of one tenant."""
    return tenant not in ("", TENANT_OF_ARN)


def name_in(tenant: str, bucket: str) -> str:
    """Return the name under which a tenant's bucket is recorded."""
    return f"{tenant}:{bucket}"


def is_in(tenant: str, bucket: str) -> bool:
    """Return whether a recorded bucket is one of the tenant."""
    return bucket.startswith(f"{tenant}:")


def name_at_store(bucket: str) -> str:
    """Return the name that a recorded bucket has where it is stored, in the tenant."""
    return bucket.rpartition(":")[2] if is_bucket_name(bucket) else bucket


def recorded_name(bucket: Mapping[str, Any], tenant: str) -> str:
    """Return the name under which a record's bucket, which has one, is recorded; `tenant` is that of its sender.

    A name that has the tenant already stays as it is: what another Bucketwire passes on, and a repair. Raises
    `BadRecord` if the name or the ARN is of another tenant.
    """
    name: str = bucket["name"]
    if not tenant:
        return name
    own = _tenant_of_arn(bucket.get("arn"))
    if own and is_fixed(tenant) and own != tenant:
        raise BadRecord("s3.bucket.arn", f"is of the tenant {own}; its token or source sends as {tenant}")
    tenant = tenant if is_fixed(tenant) else own
    if ":" not in name:
        return name_in(tenant, name) if tenant else name
    if tenant and not is_in(tenant, name):
        raise BadRecord("s3.bucket.name", f"is {excerpt(name)}, which is not of the tenant {tenant}")
    return name


def arn_account(arn: object) -> str:
    """Return the account of `arn:aws:s3:REGION:ACCOUNT:BUCKET`, where Ceph has the tenant; "" for none."""
    parts = arn.split(":", 5) if isinstance(arn, str) else []
    return parts[4] if len(parts) > 4 else ""


def _tenant_of_arn(arn: object) -> str:
    tenant = arn_account(arn)
    if tenant and not is_tenant(tenant):
        raise BadRecord("s3.bucket.arn", f"is {excerpt(arn)}, whose tenant cannot be: {TENANT_HINT}")
    return tenant
