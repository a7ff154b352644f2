"""Format a number with its noun."""


def count_noun(number: int, noun: str) -> str:
    """Return `1 event`, `1,234 events`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
