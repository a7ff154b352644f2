"""The trace context of the call to a target that this process makes: for a request with events of several traces.

One variable for the whole process: a worker process makes one call at a time, and an adapter may use several threads
for it. It is "" if traces are not exported.
"""

_trace = ""


def begin(trace: str) -> None:
    """Set the context of the call that begins, "" when it has ended."""
    global _trace  # noqa: PLW0603 - one for each process is the point
    _trace = trace


def current() -> str:
    """Return the context of the call that is being made."""
    return _trace
