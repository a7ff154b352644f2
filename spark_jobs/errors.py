"""Describe errors in one sentence, including errors that were raised inside a Spark task."""

import re

from app.outbox.errors import AlreadyRunning

# Spark passes on the traceback of a Python task as text; its last line is the error.
_TASK_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+[\w.]+: (.+)")


def root_cause(error: BaseException) -> str:
    """Return the first line of the error's message, or the message of the error in a task that caused it."""
    text = str(error).strip()
    in_task = _TASK_TRACEBACK.search(text)
    return in_task[1] if in_task else (text.splitlines() or [type(error).__name__])[0]


def describe_error(error: Exception) -> str | None:
    """Return a sentence for errors of the jobs, of S3 and of Spark; None for others."""
    package = type(error).__module__.partition(".")[0]
    if package == "spark_jobs" or isinstance(error, AlreadyRunning):
        return str(error)
    if package in ("botocore", "boto3"):
        return f"the bucket cannot be listed: {error}"
    if package in ("pyspark", "py4j"):
        return f"Spark: {root_cause(error)}; BUCKETWIRE_DEBUG=1 shows the stack trace"
    return None
