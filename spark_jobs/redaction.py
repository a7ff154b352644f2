"""Redact what this process keeps secret from errors: Spark, Java, drivers and servers repeat what they were given."""

import os
from collections.abc import Iterable

from app.config.fields.fields import Declared
from app.config.redaction import MIN_CHARACTERS
from app.config.secret_texts import SecretTexts

_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "BUCKETWIRE_TOKEN")  # that no setting declares

_secrets = set[str]()


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
