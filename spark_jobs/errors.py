"""Describe errors in one sentence, also those that were raised inside a Spark task, without this process's secrets.

Spark, Java, drivers and servers repeat what they were given.
"""

import os
import re
from collections.abc import Iterable
from typing import Any

from app.cli_common.describe_errors import describe_exception
from app.config.errors import REDACTED
from app.config.fields.fields import Declared
from app.config.secret_texts import MIN_CHARACTERS, SecretTexts
from app.listings.limits import BadListing
from app.outbox.errors import AlreadyRunning

_MAX_CAUSES = 20  # a chain may be a circle
_LOGIN = re.compile(r"//[^/@\s]+@")
_ASSIGNMENT = re.compile(r"\b(\w+)=[^\s&;,)]+")
_OF_A_SECRET = re.compile(r"(?i)password|passwd|pwd|secret|token|accesskey")
# Spark passes on the traceback of a Python task as text; its last line is the error.
_TASK_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+[\w.]+: (.+)")
_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "BUCKETWIRE_TOKEN")  # that no setting declares

_secrets = set[str]()


def root_cause(error: BaseException) -> str:
    """Return the error in a sentence without secrets: by its first line, or by what caused it in a task or in Java."""
    text = hide(str(error).strip())
    if in_task := _TASK_TRACEBACK.search(text):
        sentence = in_task[1]
    elif (exception := _java_exception(error)) is not None:
        sentence = _describe_java(exception)
    else:
        sentence = (text.splitlines() or [type(error).__name__])[0]
    return _ASSIGNMENT.sub(_redacted, _LOGIN.sub(f"//{REDACTED}@", sentence))


def _redacted(assignment: re.Match[str]) -> str:
    return f"{assignment[1]}={REDACTED}" if _OF_A_SECRET.search(assignment[1]) else assignment[0]


def _java_exception(error: BaseException) -> Any:
    """Return the exception of the JVM that an error stands for; py4j's own text names only the method that failed."""
    name = "java_exception" if type(error).__name__ == "Py4JJavaError" else "_origin"
    return getattr(error, name, None)


def _describe_java(exception: Any) -> str:
    """Return the first line of an exception's message, and of its innermost cause."""
    sentences, innermost = [_first_line(exception)], exception
    for _ in range(_MAX_CAUSES):
        if (cause := innermost.getCause()) is None:
            break
        innermost = cause
    if (caused := _first_line(innermost)) not in sentences[0]:
        sentences.append(f"caused by {innermost.getClass().getSimpleName()}: {caused}")
    return ", ".join(sentences)


def _first_line(exception: Any) -> str:
    text = hide(str(exception.getMessage() or "").strip())
    return text.splitlines()[0].strip() if text else str(exception.getClass().getName())


def describe_error(error: Exception) -> str:
    """Return a sentence without secrets."""
    return hide(_describe(error) or describe_exception(error))


def _describe(error: Exception) -> str | None:
    """Return a sentence for errors of the jobs, of S3 and of Spark; None for others."""
    package = type(error).__module__.partition(".")[0]
    if package == "spark_jobs" or isinstance(error, (AlreadyRunning, BadListing)):
        return str(error)
    if package in ("botocore", "boto3"):
        return f"the bucket cannot be listed: {error}"
    if package in ("pyspark", "py4j"):
        return f"Spark: {root_cause(error)}; BUCKETWIRE_DEBUG=1 shows the stack trace"
    return None


def forget() -> None:
    """Begin without secrets: a process that runs several jobs, as a test does, has those of one at a time."""
    _secrets.clear()


def remember(*settings: Declared) -> None:
    """Hide the secrets of settings from now on."""
    remember_texts(secret for one in settings for secret in one.secrets())


def remember_texts(secrets: Iterable[str | None]) -> None:
    """Hide these from now on, also the parts of a login such as `id:secret`."""
    for secret in filter(None, secrets):
        _secrets.update((secret, secret.partition(":")[2]))


def hide(text: str) -> str:
    """Return a text without any of them."""
    known = _secrets.union(os.environ.get(name, "") for name in _VARIABLES)
    return SecretTexts(secret for secret in known if len(secret) >= MIN_CHARACTERS).hide(text)
