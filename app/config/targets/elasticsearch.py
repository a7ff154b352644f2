"""The settings of Elasticsearch and OpenSearch (reference §4.8)."""

import base64
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from app.config.errors import BadValue, Problem
from app.config.fields.addresses import HostPort, HttpUrl, check_login_end
from app.config.fields.field_types import Choice, FieldType, Text, Toggle
from app.config.fields.fields import declared, setting
from app.config.fields.templates import Place, Templated, underscored
from app.config.targets.base import NamespaceSettings, TlsSettings, check_shape

_PORTS = {"http": 80, "https": 443}


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


class Node(NamedTuple):
    """Where a node is; the path, of a proxy in front of it, is empty or begins with `/`."""

    scheme: str
    address: HostPort
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.address}"


# Between two URLs, or two hosts of one; a login before a host may have them.
_SEVERAL = re.compile(r"[\s;|]https?://|://(?!.*@)[^/]*[\s;|]", re.IGNORECASE)


class NodeUrls(HttpUrl):
    """URLs of nodes of one cluster, or of proxies in front of them; each may have a path, the first one a login."""

    label = "http(s) URLs"
    separator = ","

    def parse(self, text: str) -> str:
        """Return the URLs without trailing slashes."""
        if any(_SEVERAL.search(url) for url in split_urls(text)):
            raise BadValue(
                "has something else than commas between its URLs", "write them as http://a:9200,http://b:9200"
            )
        urls = [super(NodeUrls, self).parse(url).rstrip("/") for url in split_urls(text)]
        for url in urls:
            check_login_end(urlsplit(url))
        if any(urlsplit(url).query for url in urls):
            raise BadValue("has a ?query, which requests to Elasticsearch cannot use", "leave it out")
        return ",".join(urls)

    def shown(self, text: str) -> str:
        return ",".join(super(NodeUrls, self).shown(url) for url in split_urls(text))

    def secrets_in(self, value: str) -> Iterator[str]:
        for url in split_urls(value):
            yield from super().secrets_in(url)


def split_urls(text: str) -> list[str]:
    """Split comma-separated URLs; a comma within a login or a path separates nothing."""
    return [url.strip() for url in re.split(r",(?=\s{0,9}https?://)", text, flags=re.IGNORECASE)]


@declared
class ElasticsearchSettings(
    NamespaceSettings,
    TlsSettings,
    type_name="elasticsearch",
    title="Elasticsearch",
    servers="OpenSearch",
    example={"url": "http://elasticsearch:9200", "index": "bucketobjects"},
):
    """Elasticsearch 7 and later; with `opensearch`, also OpenSearch (reference §4.8)."""

    entry_schemas: ClassVar[Mapping[tuple[str, str], str]] = MappingProxyType(
        {("access", "guide"): "ElasticsearchGuideEntry"}
    )

    tls_hint = "write the url with https"

    url: str = setting(NodeUrls(), about="the URLs of the cluster's nodes; the first one may contain a login")
    index: Place = setting(
        Templated(IndexName(), "index", underscored(r'[\\/*?"<>|\s,#:\x00-\x1f\x7f]', lower=True)),
        about="the index, alias or data stream; a missing index is created",
    )
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
    compression: bool = setting(Toggle(), default="off", about="compress requests and answers by gzip")
    access_shape: Literal["minio", "guide"] = setting(
        Choice("minio", "guide"),
        default="minio",
        about="format access: documents as the MinIO server writes them, or with `@timestamp`, as its old guides say",
    )

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, each once."""
        urls = (urlsplit(url) for url in split_urls(self.url))
        return tuple(
            dict.fromkeys(
                Node(url.scheme, HostPort(url.hostname or "", url.port or _PORTS.get(url.scheme, 0)), url.path)
                for url in urls
            )
        )

    @property
    def uses_tls(self) -> bool:
        """Whether the URLs are https."""
        return self.url.startswith("https:")

    @property
    def authorization(self) -> str:
        """The Authorization header; empty without a login."""
        if key := self.api_key:
            # Elasticsearch returns a key as base64 of id:key, which contains no colon.
            return f"ApiKey {base64.b64encode(key.encode()).decode() if ':' in key else key}"
        login = f"{self.username}:{self.password}".encode() if self.username else b""
        if not login:
            in_url, at, _ = urlsplit(split_urls(self.url)[0]).netloc.rpartition("@")
            login = unquote_to_bytes(in_url) if at else b""
        return f"Basic {base64.b64encode(login).decode()}" if login else ""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from check_shape(self.payload, "access_shape", self.access_shape)
        if self.index.fixed is None and self.format == "namespace":
            yield Problem("index", self.index, "is a template, and a mirror is one index", "set format=access")
        if bool(self.username) != bool(self.password):
            missing = "password" if self.username else "username"
            yield Problem(missing, "", "is missing", "give username and password, or neither")
        logins = [name for name in ("username", "api_key") if getattr(self, name)]
        first, *others = (urlsplit(url) for url in split_urls(self.url))
        if first.username is not None:
            logins.insert(0, "url")
        if any(url.username is not None for url in others):
            yield Problem("url", "", "has a login after the first URL", "write it in the first URL, for all")
        if any(url.scheme != first.scheme for url in others):
            yield Problem("url", "", "mixes http and https", "write all URLs with the same of the two")
        if len(logins) > 1:
            yield Problem(logins[1], "", f"is a second login beside that of {logins[0]}", "keep one of them")
