"""The line that shows a step of a test of a target or a source, whichever program runs it."""


def step_line(step: str, message: str, *, ok: bool, seconds: float | None = None) -> str:
    """Return the line of a step; the message must be printable already."""
    took = "" if seconds is None else f"{seconds * 1000:8.1f} ms  "
    return f"{step:>8}  {'ok' if ok else 'failed':<6}  {took}{message}"
