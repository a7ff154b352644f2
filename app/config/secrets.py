"""Seal secrets for storage, with keys that can be rotated, and unseal them where they are used."""

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from app.config.errors import REDACTED, BadSettings, BadValue, Problem
from app.config.fields.fields import Declared, fields_of, redact

_SEALED = "enc:"


class Sealer:
    """Seal texts with the first key and unseal texts of any key. Raises `BadValue` for an invalid key.

    To rotate, put a new key first, seal again what is stored, and remove the old key. `reload_keys` returns the current
    keys; it is called when no known key unseals a text, so that a process needs no restart.
    """

    def __init__(self, keys: Sequence[str], reload_keys: Callable[[], Sequence[str]] = tuple) -> None:
        if not keys:
            raise BadValue("contains no key", "give at least one; `bucketwire` writes its own to var/secret.key")
        self._keys = MultiFernet([parse_key(key) for key in keys])
        self._reload_keys = reload_keys

    def seal(self, text: str) -> str:
        """Return the text as it may be stored: `enc:` and a token that differs each time."""
        return _SEALED + self._keys.encrypt(text.encode()).decode()

    def unseal(self, text: str) -> str:
        """Return the text that was sealed; an unsealed text is returned unchanged. Raises `BadValue`."""
        if not text.startswith(_SEALED):
            return text
        sealed = text.removeprefix(_SEALED)
        try:
            return self._keys.decrypt(sealed).decode()
        except InvalidToken:
            if keys := self._reload_keys():
                self._keys = MultiFernet([parse_key(key) for key in keys])
        try:
            return self._keys.decrypt(sealed).decode()
        except InvalidToken:
            raise BadValue(
                "was sealed with a key that is not among BUCKETWIRE_SECRET_KEYS",
                "put the old key back at the end of the list, or set this secret again",
            ) from None

    def seal_all(self, declaration: type[Declared] | None, values: Mapping[str, str]) -> dict[str, str]:
        """Return the texts of settings of this declaration as they may be stored; without one all of them are sealed.

        Everything that is redacted is sealed: secrets, URLs with a password, and unknown keys, because they may be
        misspelt secrets. So is a webhook's address. A reference to a secret is not sealed.
        """
        redacted, always = _redact_all(declaration, values), _always_sealed(declaration)
        return {
            name: self.seal(text) if text != redacted[name] or name in always or text.startswith(_SEALED) else text
            for name, text in values.items()
        }

    def unseal_all(self, subject: object, values: Mapping[str, str]) -> dict[str, str]:
        """Return texts with secrets unsealed. Raises `BadSettings`, which names `subject` and each key that fails."""
        unsealed = {}
        problems = []
        for name, text in values.items():
            try:
                unsealed[name] = self.unseal(text)
            except BadValue as error:
                problems.append(Problem(name, REDACTED, error.problem, error.hint))
        if problems:
            raise BadSettings(problems, str(subject))
        return unsealed

    def unseal_to_compare(self, subject: object, values: Mapping[str, str]) -> Mapping[str, str]:
        """Return texts with secrets unsealed, or as they are if one was sealed with a key that is not known any more.

        Then every secret counts as changed.
        """
        try:
            return self.unseal_all(subject, values)
        except BadSettings:
            return values


def parse_key(text: str) -> Fernet:
    """Parse a Fernet key. Raises `BadValue`."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{43}=", text):  # the library ignores invalid characters
        hint = "write 32 random bytes as URL-safe base64: openssl rand -base64 32 | tr +/ -_"
        raise BadValue("is not a secret key", hint)
    return Fernet(text)


def key_file(path: Path) -> str:
    """Return the key in a file, which is created on first use with mode 0600.

    Processes that start at the same time get the same key. Raises `BadValue` if others can read the file, if it has no
    key, or if it cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _create_key_file(path)
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise BadValue(f"cannot be used: {path}: {error.strerror}", "make its folder writable") from None
    if mode & 0o077:
        raise BadValue(f"{path} can be read by others", f"chmod 600 {path}")
    parse_key(text)
    return text


def _create_key_file(path: Path) -> None:
    # Written in full under another name and then linked to its path: nobody reads half a key, and the first link wins.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(Fernet.generate_key() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first; its key is used
            os.link(draft, path)
        _sync_folder(path.parent)
    finally:
        draft.unlink()


def _sync_folder(folder: Path) -> None:
    # If a power cut loses the key, every secret sealed with it is lost.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _always_sealed(declaration: type[Declared] | None) -> set[str]:
    fields = fields_of(declaration).values() if declaration is not None else ()
    return {field.name for field in fields if field.kind.is_sealed}


def _redact_all(declaration: type[Declared] | None, values: Mapping[str, str]) -> Mapping[str, str]:
    if declaration is None:
        return {name: text and REDACTED for name, text in values.items()}
    return redact(declaration, values)
