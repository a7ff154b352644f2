"""Names of buckets: what a storage allows, which an event need not keep to."""

import re

# What S3 and its kin allow: AWS, MinIO, SeaweedFS and Garage today (3 to 63 lower-case letters, digits, dots, hyphens),
# AWS before 2018 and Ceph's relaxed mode (up to 255, also upper case and underscores). No slash, colon or blank: never
# a path, an ARN or two words; no hyphen or dot at the beginning, so never an option or a hidden folder.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{2,254}")


def is_bucket_name(name: str) -> bool:
    """Whether some storage allows a bucket of this name."""
    return _NAME.fullmatch(name) is not None
