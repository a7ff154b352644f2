"""What went wrong, in a sentence, also where it went wrong within a task of Spark's."""

import re

# What Spark hands on of a task that Python ended: the last line of its traceback says it.
_IN_A_TASK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+[\w.]+: (.+)")


def reason(error: BaseException) -> str:
    """The first line of what the error says, or of what the error in a task said that made it."""
    text = str(error).strip()
    within = _IN_A_TASK.search(text)
    return within[1] if within else (text.splitlines() or [type(error).__name__])[0]
