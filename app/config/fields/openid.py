"""Types of the settings of the sign-in with OpenID Connect."""

from app.config.errors import BadValue
from app.config.fields.addresses import HttpUrl, split_url
from app.config.fields.field_types import FieldType
from app.config.networks import is_loopback


class Issuer(HttpUrl):
    """The identifier of a provider: an `https` URL; `http` is for a provider on this machine."""

    label = "https URL"

    def parse(self, text: str) -> str:
        """Return the text as it is: the provider's tokens have to name exactly this issuer."""
        super().parse(text)
        parts = split_url(text)
        if parts.query or "@" in parts.netloc:
            raise BadValue("is not an issuer", "write https://host/path, as the provider's tokens name it")
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise BadValue("is not an https URL", "people's tokens would be sent in the clear")
        return text


class ConsoleUrl(HttpUrl):
    """The address of the console's folder as browsers see it; it ends with `/console/`."""

    label = "http(s) URL"

    def parse(self, text: str) -> str:
        """Return the URL with a `/` at its end."""
        url = super().parse(text)
        if split_url(url).query or not url.rstrip("/").endswith("/console"):
            raise BadValue("is not the console's address", "write it as a browser shows it: https://host/path/console/")
        return url.rstrip("/") + "/"


class Values(FieldType[tuple[str, ...]]):
    """Comma-separated values."""

    label = "comma-separated values"
    empty = ()

    def parse(self, text: str) -> tuple[str, ...]:
        """Return the values, without the spaces around them."""
        return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
