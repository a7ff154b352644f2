"""Secrets that stand elsewhere: `file:/path` and `env:NAME` in place of the secret itself.

Who may set a target chooses where its secrets are sent, so a target's settings must not reach what is not meant for
targets: they refer to files of one folder, `BUCKETWIRE_SECRETS_DIR`, wherever the settings come from, and never to the
service's own files and variables. The service's own settings come from its environment alone and may name any file.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from app.config.errors import BadValue

SECRETS_DIR = "/run/secrets"  # where container runtimes put secrets
_VARIABLE = "BUCKETWIRE_SECRETS_DIR"
_OWN_FOLDERS = {"BUCKETWIRE_DATA_DIR": "var", "BUCKETWIRE_SPOOL_DIR": ""}
_OWN = "BUCKETWIRE_"
_OTHERS = ("MINIO_", "AWS_", "FLOWER_")  # logins of other targets, of the storage, of Flower
_LONGEST = 64 * 1024
_REFERENCE = re.compile(r"file:/[^\0]*|env:[A-Za-z_][A-Za-z0-9_]*", re.DOTALL)


def is_secret_ref(text: str) -> bool:
    """Whether this is the place of a secret and not the secret.

    Only what can be a place is one, and may be printed: `env:` and what is no name may well be a secret itself.
    """
    return _REFERENCE.fullmatch(text) is not None


def resolve_secret(text: str, environ: Mapping[str, str] | None = None, *, own: bool = False) -> str:
    """The secret that `text` refers to, blanks around it removed; a text that is no reference is itself the secret.

    `own`: the text is a setting of the service itself, which may name any file. Raises `BadValue` when there is nothing
    at that place, or when a target's settings may not refer to it; then it is not looked at.
    """
    environ = os.environ if environ is None else environ
    if text.startswith(("file:", "env:")) and not is_secret_ref(text):
        raise BadValue(
            "begins as a reference but is none", "write file:/ and the absolute path, or env: and a variable's name"
        )
    if text.startswith("file:"):
        path = Path(text.removeprefix("file:"))
        found = _read(path if own else _of_targets(path, environ))
        place = "the file it refers to"
    elif text.startswith("env:"):
        name = text.removeprefix("env:")
        if name.startswith(_OWN) or (not own and name.startswith(_OTHERS)):
            raise BadValue("refers to a variable of the service itself", "refer to a variable of another name")
        found = environ.get(name, "")
        place = f"the variable {name}"
    else:
        return text
    if not found.strip():
        raise BadValue(f"cannot be had: {place} is empty or missing", "it must exist wherever the service runs")
    return found.strip()


def _of_targets(path: Path, environ: Mapping[str, str]) -> Path:
    """The file itself, without links, which has to stand directly in the folder of secrets. Raises `BadValue`.

    Directly: container runtimes put tokens of their own into folders below /run/secrets.
    """
    given = environ.get(_VARIABLE, "").strip() or SECRETS_DIR
    hint = f"put the file into {given}, the folder that {_VARIABLE} names where the service runs"
    folder, wanted = os.path.normpath(given), os.path.normpath(path)
    if os.path.dirname(wanted) != folder:  # noqa: PTH120 - of the text; what is elsewhere is not even looked for
        raise BadValue("refers to a file outside the folder of secrets", hint)
    real = Path(os.path.realpath(wanted))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise BadValue("refers to a link that leads out of the folder of secrets", hint)
    if _is_own(real, environ):
        raise BadValue("refers to a file of the service itself", "refer to a file that is meant for targets")
    return real


def _is_own(real: Path, environ: Mapping[str, str]) -> bool:
    """Whether the service keeps this file, or a setting of its own names it, also by another name of the file."""
    folders = [environ.get(name, "").strip() or default for name, default in _OWN_FOLDERS.items()]
    if any(folder and real.parent == Path(os.path.realpath(folder)) for folder in folders):
        return True
    values = [text.strip() for name, text in environ.items() if name.startswith(_OWN)]
    named = [Path(re.sub(r"^(file:|sqlite:///)", "", text)) for text in values if "/" in text and "\0" not in text]
    return any(_is_same(real, path) for path in named if path.is_absolute())


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadValue(
            f"cannot be had: {path}: {reason}", "the file must be there and readable wherever the service runs"
        ) from None
    if len(content) > _LONGEST:
        raise BadValue(f"cannot be had: {path} is larger than {_LONGEST} bytes", "a secret is a short text")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadValue(f"cannot be had: {path} is not UTF-8 text", "a secret is a short text") from None
