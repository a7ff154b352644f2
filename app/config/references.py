"""Secrets that stand elsewhere: `file:/path` and `env:NAME` in place of the secret itself."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from app.config.problems import BadValue

_LONGEST = 64 * 1024
_REFERENCE = re.compile(r"file:/.*|env:[A-Za-z_][A-Za-z0-9_]*", re.DOTALL)


def is_reference(text: str) -> bool:
    """Whether this is the place of a secret and not the secret.

    Only what can be a place is one, and may be printed: `env:` and what is no name may well be a secret itself.
    """
    return _REFERENCE.fullmatch(text) is not None


def resolve(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The secret that `text` refers to, blanks around it removed; a text that is no reference is itself the secret.

    Raises `BadValue` when there is nothing at that place. The service's own `BUCKETWIRE_*` variables cannot be
    referred to: a target's settings may come from someone who must not learn them.
    """
    if text.startswith(("file:", "env:")) and not is_reference(text):
        raise BadValue(
            "begins as a reference but is none", "write file:/ and the absolute path, or env: and a variable's name"
        )
    if text.startswith("file:"):
        found = _read(Path(text.removeprefix("file:")))
        place = "the file it refers to"
    elif text.startswith("env:"):
        name = text.removeprefix("env:")
        if name.startswith("BUCKETWIRE_"):
            raise BadValue("refers to a variable of the service itself", "refer to a variable of another name")
        found = (os.environ if environ is None else environ).get(name, "")
        place = f"the variable {name}"
    else:
        return text
    if not found.strip():
        raise BadValue(f"cannot be had: {place} is empty or missing", "it must exist wherever the service runs")
    return found.strip()


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
    except OSError as error:
        raise BadValue(
            f"cannot be had: {path}: {error.strerror}", "the file must be there and readable wherever the service runs"
        ) from None
    if len(content) > _LONGEST:
        raise BadValue(f"cannot be had: {path} is larger than {_LONGEST} bytes", "a secret is a short text")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadValue(f"cannot be had: {path} is not UTF-8 text", "a secret is a short text") from None
