"""Limits on what may be changed by one listing, which may be wrong."""

ALWAYS_ALLOWED = 10  # so many objects may be removed at the smallest target or bucket, unless none may


def exceeds(number: int, total: int, percent: float, always: int) -> bool:
    """Return whether a number is more than some per cent of a total and more than `always`; 0 per cent allows none."""
    return number > (max(always, total * percent / 100) if percent else 0)
