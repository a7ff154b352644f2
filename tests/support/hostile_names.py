"""Names of buckets that somebody may post, and that no part of the service may take for anything but a name."""

from __future__ import annotations

# Each is text of at most 255 characters, which is what an event may bring.
BUCKETS = [
    "it's", "x' OR '1'='1", "x') OR 1=1 --", "x\\' OR 1=1 --", "\\", 'quo"te', "`; DROP TABLE `rows`; --", "?",
    "{fn now()}", "-rf", "--repair", "--", " lead", "new\nline", "tab\t\x1b[31m", "${7*7}{{7*7}}",
    "<script>alert(1)</script>",
    "%s%n%41", "a*?[x]^", "..", "../../etc/passwd", "arn:aws:s3:::x", "日本🎉", "x" * 255, "🎉" * 250,
]  # fmt: skip
UNPOSTABLE = ["", "trail ", "nul\0", "x" * 256, "x" * 1000]


def scheduled(name: str) -> bool:
    """Whether a hostile name is one that a storage might allow all the same."""
    return name == "x" * 255
