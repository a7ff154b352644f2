"""OpenSearch, without its security plugin: it listens on loopback and knows no users."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests import provision
from tests.services.java import JavaServer, as_file
from tests.services.server_process import LOOPBACK, free_port, need


@dataclass(eq=False)
class OpenSearch(JavaServer):
    """One OpenSearch node, of version 2 or the newest. Indexed documents are kept through kill and start."""

    name: ClassVar[str] = "opensearch"
    newest: ClassVar[Path | None] = provision.NEWEST_JAVA
    patience: ClassVar[float] = 90

    def check(self) -> None:
        need("newest_opensearch" if self.tree else "opensearch")

    @property
    def version(self) -> str:
        """Its version in full."""
        return provision.NEW_OPENSEARCH_VERSION if self.tree else provision.OPENSEARCH_VERSION

    def prepare(self) -> None:
        config = self.folder / "config"
        config.mkdir()
        (self.folder / "tmp").mkdir()
        settings: dict[str, Any] = {
            "cluster.name": "peers",
            "node.name": "node-1",
            "path.data": str(self.folder / "data"),
            "path.logs": str(self.folder / "logs"),
            "network.host": LOOPBACK,
            "http.port": self.port,
            "transport.port": free_port(),
            "http.type": "netty4",
            "transport.type": "netty4",
            "discovery.type": "single-node",
            "cluster.routing.allocation.disk.threshold_enabled": False,
        }
        # JSON is YAML.
        (config / "opensearch.yml").write_text("".join(f"{k}: {json.dumps(v)}\n" for k, v in settings.items()))
        (config / "log4j2.properties").write_text(
            "status = error\nappender.c.type = Console\nappender.c.name = c\nappender.c.layout.type = PatternLayout\n"
            "appender.c.layout.pattern = [%d{ISO8601}][%-5p][%c{1.}] %m%n\n"
            "rootLogger.level = info\nrootLogger.appenderRef.c.ref = c\n"
        )

    def jars(self) -> Sequence[Path]:
        home = provision.NEW_OPENSEARCH if self.tree else provision.OPENSEARCH
        return [as_file(home / "launcher"), *sorted((home / "lib").glob("*.jar"))]

    def argv(self) -> Sequence[str | Path]:
        folder = self.folder
        heap = ["-Xms512m", "-Xmx512m", "-Dlog4j.shutdownHookEnabled=false", "-Dlog4j2.disable.jmx=true"]
        paths = [f"-Dpeer.home={folder}", f"-Dpeer.conf={folder}/config", f"-Djava.io.tmpdir={folder}/tmp"]
        return self.serving(*heap, *paths, main="OsNode")

    @property
    def url(self) -> str:
        """The node's URL."""
        return f"http://{LOOPBACK}:{self.port}"

    def ping(self) -> None:
        with urllib.request.urlopen(f"{self.url}/", timeout=5) as answer:
            version = json.load(answer)["version"]
            assert (version["distribution"], version["number"]) == ("opensearch", self.version)


def opensearch() -> OpenSearch:
    """A running OpenSearch node of its own."""
    return OpenSearch().start()
