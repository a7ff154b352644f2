"""The settings of Elasticsearch and OpenSearch (reference §4.8)."""

import base64
import re
from collections.abc import Iterator
from typing import Literal
from urllib.parse import unquote_to_bytes, urlsplit

from app.config.errors import BadValue, Problem
from app.config.fields.addresses import HttpUrl
from app.config.fields.field_types import Choice, FieldType, Path, Text, Toggle
from app.config.fields.fields import declared, setting
from app.config.targets.base import NamespaceSettings, check_certificate_pair


class IndexName(FieldType[str]):
    """The name of an index, an alias or a data stream."""

    label = "index name"
    empty = ""

    def parse(self, text: str) -> str:
        if text != text.lower():
            raise BadValue("has upper-case letters, which no index can have", "write it in lower case")
        if re.search(r'[\\/*?"<>|\s,#:]', text) or text.startswith(("-", "_", "+")) or text in (".", ".."):
            raise BadValue(
                "is not an index name", 'leave out spaces and \\ / * ? " < > | , # : and do not begin with - _ or +'
            )
        if len(text.encode(errors="replace")) > 255:
            raise BadValue("is longer than the 255 bytes that an index name can have", "shorten it")
        return text


class NodeUrl(HttpUrl):
    """The URL of a node, or of a proxy in front of it; it may contain a login and a path."""

    def parse(self, text: str) -> str:
        """Return the URL without a trailing `/`."""
        url = super().parse(text)
        if urlsplit(url).query:
            raise BadValue("has a ?query, which requests to Elasticsearch cannot use", "leave it out")
        return url.rstrip("/")


@declared
class ElasticsearchSettings(NamespaceSettings, type_name="elasticsearch", title="Elasticsearch"):
    """Elasticsearch 7 and later; with `opensearch`, also OpenSearch (reference §4.8)."""

    url: str = setting(NodeUrl(), about="the URL of a node; it may contain a login")
    index: str = setting(IndexName(), about="the index, alias or data stream; a missing index is created")
    username: str = setting(Text(), default="", about="user, if not in the URL")
    password: str = setting(Text(), default="", secret=True, about="password of the user")
    api_key: str = setting(
        Text(ascii_only=True),
        default="",
        secret=True,
        about="an API key as Elasticsearch returns it (base64), or id:key",
    )
    id_style: Literal["hash", "plain"] = setting(
        Choice("hash", "plain"),
        default="hash",
        about="format namespace: document ids as MinIO makes them, or bucket/object of up to 512 bytes",
    )
    opensearch: bool = setting(
        Toggle(), default="off", about="accept OpenSearch, and Elasticsearch before 7.14, which do not name themselves"
    )
    tls_ca: str = setting(Path(), default="", about="PEM file of the only authorities to trust; empty: the system's")
    tls_skip_verify: bool = setting(Toggle(), default="off", about="do not verify the server's certificate")
    client_cert: str = setting(Path(), default="", about="PEM file of the client's certificate")
    client_key: str = setting(Path(), default="", about="PEM file of its key")

    @property
    def authorization(self) -> str:
        """The Authorization header; empty without a login."""
        if key := self.api_key:
            # Elasticsearch returns a key as base64 of id:key, which contains no colon.
            return f"ApiKey {base64.b64encode(key.encode()).decode() if ':' in key else key}"
        login = f"{self.username}:{self.password}".encode() if self.username else b""
        if not login:
            in_url, at, _ = urlsplit(self.url).netloc.rpartition("@")
            login = unquote_to_bytes(in_url) if at else b""
        return f"Basic {base64.b64encode(login).decode()}" if login else ""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from check_certificate_pair(self.client_cert, self.client_key)
        if bool(self.username) != bool(self.password):
            missing = "password" if self.username else "username"
            yield Problem(missing, "", "is missing", "give username and password, or neither")
        logins = [name for name in ("username", "api_key") if getattr(self, name)]
        if urlsplit(self.url).username is not None:
            logins.insert(0, "url")
        if len(logins) > 1:
            yield Problem(logins[1], "", f"is a second login beside that of {logins[0]}", "keep one of them")

    def ineffective(self) -> Iterator[Problem]:
        if not self.url.startswith("https:"):
            yield from self.needing_tls("tls_ca", "tls_skip_verify", "client_cert", hint="write the url with https")
