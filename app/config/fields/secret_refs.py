"""References to secrets: `file:/path` and `env:NAME` in place of the secret itself.

A user who may set a target chooses where its secrets are sent. So a target's settings must not reach secrets that are
not meant for targets: they may refer only to files of one folder, `BUCKETWIRE_SECRETS_DIR`, wherever the settings come
from, and never to the service's own files and variables. The service's own settings come only from its environment and
may name any file.
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
_FORBIDDEN = ("MINIO_", "AWS_", "FLOWER_", "OTEL_")  # credentials of other targets, the storage, Flower, a collector
_MAX_SECRET_BYTES = 64 * 1024
_REFERENCE = re.compile(r"file:/[^\0]*|env:[A-Za-z_][A-Za-z0-9_]*", re.DOTALL)
# `env:prod` is a common tag, so in lower case only where a password is.
_WITHIN = re.compile(
    r"[\s=:\"'](?:env:[A-Z_][A-Z0-9_]*(?![A-Za-z0-9])|env:\w+@|file:/\w)|(?i:pass\w*|pwd|secret|token)\s*=\s*[\"']?env:"
)


def is_secret_ref(text: str) -> bool:
    """Return whether this text is a reference to a secret rather than the secret.

    Only a valid reference counts, and may be printed: `env:` followed by an invalid name may be a secret itself.
    """
    return _REFERENCE.fullmatch(text) is not None


def looks_like_secret_ref(text: str) -> bool:
    """Return whether a longer text has what was probably meant as a reference to a secret within it."""
    return _WITHIN.search(text) is not None


def resolve_secret(text: str, environ: Mapping[str, str] | None = None, *, own: bool = False) -> str:
    """Return the secret that `text` refers to, without surrounding spaces; a text that is not a reference is returned.

    `own`: the text is a setting of the service itself, which may name any file. Raises `BadValue` if the file or
    variable is missing or empty, or if a target's settings may not refer to it; then it is not read.
    """
    environ = os.environ if environ is None else environ
    if text.startswith(("file:", "env:")) and not is_secret_ref(text):
        raise BadValue(
            "looks like a reference but is not one", "write file:/ and the absolute path, or env: and a variable's name"
        )
    if text.startswith("file:"):
        path = Path(text.removeprefix("file:"))
        secret = _read(path if own else _resolve_in_secrets_dir(path, environ))
        source = "the file it refers to"
    elif text.startswith("env:"):
        name = text.removeprefix("env:")
        if name.startswith(_OWN) or (not own and name.startswith(_FORBIDDEN)):
            raise BadValue("refers to a variable of the service itself", "refer to a variable of another name")
        secret = environ.get(name, "")
        source = f"the variable {name}"
    else:
        return text
    if not secret.strip():
        raise BadValue(f"cannot be read: {source} is empty or missing", "it must exist wherever the service runs")
    return secret.strip()


def _resolve_in_secrets_dir(path: Path, environ: Mapping[str, str]) -> Path:
    """Return the real path of a file that is directly in the folder of secrets. Raises `BadValue`.

    Directly, because container runtimes put their own tokens into subfolders of /run/secrets.
    """
    secrets_dir = environ.get(_VARIABLE, "").strip() or SECRETS_DIR
    hint = f"put the file into {secrets_dir}, the folder that {_VARIABLE} names where the service runs"
    folder, normalized = os.path.normpath(secrets_dir), os.path.normpath(path)
    if os.path.dirname(normalized) != folder:  # noqa: PTH120 - compares the text; a path elsewhere is not even opened
        raise BadValue("refers to a file outside the folder of secrets", hint)
    real = Path(os.path.realpath(normalized))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise BadValue("refers to a link that leads out of the folder of secrets", hint)
    if _is_own(real, environ):
        raise BadValue("refers to a file of the service itself", "refer to a file that is meant for targets")
    return real


def _is_own(real: Path, environ: Mapping[str, str]) -> bool:
    """Return whether the file is in a folder of the service, or one of its settings names it or a link to it."""
    folders = [environ.get(name, "").strip() or default for name, default in _OWN_FOLDERS.items()]
    if any(folder and real.parent == Path(os.path.realpath(folder)) for folder in folders):
        return True
    values = [text.strip() for name, text in environ.items() if name.startswith((_OWN, "OTEL_"))]
    named = [Path(re.sub(r"^(file:|sqlite:///)", "", text)) for text in values if "/" in text and "\0" not in text]
    return any(_is_same(real, path) for path in named if path.is_absolute())


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:
        return False


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_SECRET_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadValue(
            f"cannot be read: {path}: {reason}", "the file must exist and be readable wherever the service runs"
        ) from None
    if len(content) > _MAX_SECRET_BYTES:
        raise BadValue(f"cannot be read: {path} is larger than {_MAX_SECRET_BYTES} bytes", "a secret is a short text")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadValue(f"cannot be read: {path} is not UTF-8 text", "a secret is a short text") from None
