"""A catalog of Iceberg tables that is asked by REST: Apache Iceberg's own server, which keeps it in SQLite."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests import provision
from tests.services import spark_classes
from tests.services.java import JavaServer
from tests.services.server_process import LOOPBACK


@dataclass(eq=False)
class IcebergRest(JavaServer):
    """The server; the files of its tables are in its folder, too."""

    name: ClassVar[str] = "iceberg_rest"
    patience: ClassVar[float] = 90

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def jars(self) -> Sequence[Path]:
        hadoop = sorted(spark_classes.home().glob("jars/hadoop-client-*.jar"))
        return [*sorted(provision.ICEBERG_REST.glob("*.jar")), *hadoop]

    def env(self) -> Mapping[str, str]:
        return {
            "CATALOG_REST_PORT": str(self.port),
            "CATALOG_URI": f"jdbc:sqlite:{self.folder}/catalog.db",
            "CATALOG_CLIENTS": "1",  # connections to that: one writes at a time
            "CATALOG_WAREHOUSE": f"file://{self.folder}/warehouse",
        }

    def argv(self) -> Sequence[str | Path]:
        return self.serving("-Xmx128m", main="org.apache.iceberg.rest.RESTCatalogServer")

    def ping(self) -> None:
        with urllib.request.urlopen(f"{self.url}/v1/config", timeout=5) as answer:
            assert "defaults" in json.load(answer)


def iceberg_rest() -> IcebergRest:
    """A running REST catalog of its own."""
    return IcebergRest().start()
