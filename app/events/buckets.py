"""The bucket names that a storage allows; an event's bucket name need not conform."""

import re

# The names that storages allow: AWS, MinIO, SeaweedFS and Garage today (3 to 63 lower-case letters, digits, dots,
# hyphens), AWS before 2018 and Ceph's relaxed mode (up to 255, also upper case and underscores). Without slash, colon
# and space, a name is never a path, an ARN or two words; without a hyphen or dot at the beginning, it is never an
# option or a hidden folder.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{2,254}")


def is_bucket_name(name: str) -> bool:
    """Return whether a storage allows a bucket of this name."""
    return _NAME.fullmatch(name) is not None
