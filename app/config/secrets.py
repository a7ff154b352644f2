"""Secrets at rest: sealed with keys that can be rotated, opened only where they are used."""

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from app.config.arn import TargetId
from app.config.errors import REDACTED, BadSettings, BadValue, Problem
from app.config.fields.fields import shown
from app.config.targets.registry import TYPES

_SEALED = "enc:"


class Sealer:
    """Seals texts with the first of its keys and opens what any of them has sealed. Raises `BadValue` for a bad key.

    To rotate, put a new key first, seal again what is stored, and take the old one away. `again` says the keys as they
    are by now; it is asked when none of those known opens a text, so that a process need not be started anew.
    """

    def __init__(self, keys: Sequence[str], again: Callable[[], Sequence[str]] = tuple) -> None:
        if not keys:
            raise BadValue("holds no key", "give at least one; `bucketwire` writes its own to var/secret.key")
        self._keys = MultiFernet([parse_key(key) for key in keys])
        self._again = again

    def seal(self, text: str) -> str:
        """The text as it may be stored: `enc:` and a token that differs each time."""
        return _SEALED + self._keys.encrypt(text.encode()).decode()

    def unseal(self, text: str) -> str:
        """The text that was sealed; one that is not sealed is returned as it is. Raises `BadValue`."""
        if not text.startswith(_SEALED):
            return text
        sealed = text.removeprefix(_SEALED)
        try:
            return self._keys.decrypt(sealed).decode()
        except InvalidToken:
            if keys := self._again():
                self._keys = MultiFernet([parse_key(key) for key in keys])
        try:
            return self._keys.decrypt(sealed).decode()
        except InvalidToken:
            raise BadValue(
                "was sealed with a key that is not among BUCKETWIRE_SECRET_KEYS",
                "put the old key back at the end of the list, or set this secret again",
            ) from None

    def seal_all(self, target: TargetId | str, values: Mapping[str, str]) -> dict[str, str]:
        """A target's texts as they may be stored.

        Sealed is all that is not shown: secrets, URLs with a password, and what is no setting of the type, because it
        may be a misspelt secret. A reference to a secret is none.
        """
        as_shown = _shown(target if isinstance(target, str) else target.type, values)
        return {
            name: self.seal(text) if text != as_shown[name] or text.startswith(_SEALED) else text
            for name, text in values.items()
        }

    def unseal_all(self, target: TargetId | str, values: Mapping[str, str]) -> dict[str, str]:
        """A target's texts with its secrets open. Raises `BadSettings` naming each key that cannot be opened."""
        opened = {}
        problems = []
        for name, text in values.items():
            try:
                opened[name] = self.unseal(text)
            except BadValue as error:
                problems.append(Problem(name, REDACTED, error.problem, error.hint))
        if problems:
            raise BadSettings(problems, str(target))
        return opened


def parse_key(text: str) -> Fernet:
    """A Fernet key. Raises `BadValue`."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{43}=", text):  # the library passes over odd characters
        hint = "write 32 random bytes as URL-safe base64: openssl rand -base64 32 | tr +/ -_"
        raise BadValue("is no secret key", hint)
    return Fernet(text)


def key_file(path: Path) -> str:
    """The key in a file, which is made on first use with mode 0600; processes that start at once get the same one.

    Raises `BadValue` for a file that others can read, that holds no key, or that cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _make(path)
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise BadValue(f"cannot be used: {path}: {error.strerror}", "make its folder writable") from None
    if mode & 0o077:
        raise BadValue(f"{path} can be read by others", f"chmod 600 {path}")
    parse_key(text)
    return text


def _make(path: Path) -> None:
    # Written in full beside its place and then linked into it: nobody sees half a key, and the first link wins.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(Fernet.generate_key() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # then another process was first, and its key counts
            os.link(draft, path)
        _sync_folder(path.parent)
    finally:
        draft.unlink()


def _sync_folder(folder: Path) -> None:
    # A secret sealed with a key that a power cut takes away is lost.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _shown(type_name: str, values: Mapping[str, str]) -> Mapping[str, str]:
    if type_name not in TYPES:
        return {name: text and REDACTED for name, text in values.items()}
    return shown(TYPES[type_name], values)
