"""Redact the secrets of settings from texts, whoever has written these."""

from app.config.fields.fields import Declared
from app.config.secret_texts import SecretTexts

MIN_CHARACTERS = 4  # shorter secrets are not replaced, as that would also hide harmless words


class Redaction:
    """Hides the secrets of some settings in texts."""

    def __init__(self, settings: Declared) -> None:
        self._secrets = SecretTexts(secret for secret in settings.secrets() if len(secret) >= MIN_CHARACTERS)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def hide(self, text: str) -> str:
        """Return the text without the secrets."""
        return self._secrets.hide(text)
