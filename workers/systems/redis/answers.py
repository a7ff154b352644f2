"""What Redis's answers and errors mean."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import AskError, NoPermissionError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

# Permissions of a target's user.
_NEEDED = "+type +hset +hdel +hget +eval +rpush +xadd +multi +exec, with wait_replicas +wait,"

_STREAM_ID = re.compile(rb"[0-9]+-[0-9]+")

# By command and its words: how many fields it changes at most.
_MOST_CHANGED: dict[str, Callable[[Sequence[Any]], float]] = {
    "HSET": lambda words: (len(words) - 2) // 2,
    "HDEL": lambda words: len(words) - 2,
    "EVAL": lambda words: (len(words) - 4) // 2,
    "WAIT": lambda _: math.inf,
}

Commands = Sequence[Sequence[Any]]  # each is its words


class UnexpectedAnswer(RedisConnectionError):
    """The answer is not one of this command: what was asked may have been done or not, as after a lost connection."""


def answers_to(commands: Commands, received: list[Any]) -> list[Any]:
    """Return the answer to each command, or the error that it was refused with.

    `received` has more answers if the commands were sent as one transaction: those to MULTI and EXEC too. Raises
    `UnexpectedAnswer`.
    """
    if len(received) > len(commands):
        if refused := next((each for each in received if isinstance(each, Exception)), None):
            return [refused] * len(commands)
        received = received[-1]
        if not isinstance(received, list) or len(received) != len(commands):
            raise UnexpectedAnswer(f"the answer to EXEC is not that of {len(commands)} commands")
    for words, answer in zip(commands, received, strict=True):
        if not isinstance(answer, Exception):
            check_answer(words, answer)
    return received


def check_answer(words: Sequence[Any], answer: Any) -> None:
    """Check that this is an answer to this command. Raises `UnexpectedAnswer`."""
    name = words[0]
    if name == "XADD":
        right = isinstance(answer, bytes) and _STREAM_ID.fullmatch(answer) is not None
    elif name == "RPUSH":  # the length of the list: with the entries that were appended
        right = type(answer) is int and answer >= len(words) - 2
    else:  # how many fields were added or removed; WAIT: how many replicas have it
        right = type(answer) is int and 0 <= answer <= _MOST_CHANGED[name](words)
    if not right:
        raise UnexpectedAnswer(f"the answer to {name} is {str(answer)[:80]!r}, which is no answer to it")


def is_about_the_server(error: Exception) -> bool:
    """Return whether the error is about the server, the key or the login, so that every other event would fail too.

    Redis gives such states their own error code (`OOM`, `READONLY`, `WRONGTYPE`, `MISCONF`, ...), which redis-py maps
    to a class if it knows the code. A bare `ERR` is about the command, unless the server does not know that command or
    stopped our script, which no event can cause to fail.
    """
    if isinstance(error, RedisConnectionError | RedisTimeoutError | OSError) or type(error) is not ResponseError:
        return True
    text = str(error)
    first = text.partition(" ")[0]
    if first.isupper() and first != "ERR":
        return True
    return text.startswith(("unknown command", "wrong number of arguments")) or "script" in text


def is_about_the_key(error: Exception) -> bool:
    """Return whether a command was refused for what its key holds, or because the user may not use this key."""
    text = str(error)
    return text.startswith("WRONGTYPE") or (isinstance(error, NoPermissionError) and " key" in text)


def describe_error(error: Exception, needed: str = _NEEDED) -> str:
    """Return the error as text, with the permissions that are `needed` if they are what it is about."""
    if isinstance(error, AskError):  # MOVED too
        return f"the key's slot {error.slot_id} is now, or about to be, at {error.host}:{error.port}"
    text = str(error) or type(error).__name__
    if isinstance(cause := error.__cause__ or error.__context__, OSError):  # redis-py writes the tuple of its arguments
        text = text.replace(str(cause.args), cause.strerror or str(cause))
    if isinstance(error, NoPermissionError):
        text += f" (the user needs {needed} on this key, and +client|setname; for a Cluster +cluster|slots)"
    return text
