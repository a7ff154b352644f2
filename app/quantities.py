"""Format numbers with their nouns, and how long ago something was."""


def count_noun(number: int, noun: str) -> str:
    """Return `1 event`, `1,234 events`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def format_age(at: int, now: int) -> str:
    """Format how long ago a time was, in a suitable unit; empty for 0, which means never. Both are ms since 1970."""
    if not at:
        return ""
    return format_seconds(max(0, now - at) / 1000)


def format_seconds(seconds: float) -> str:
    """Format a time that has passed in a suitable unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
