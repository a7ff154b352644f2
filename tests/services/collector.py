"""The OpenTelemetry Collector, which checks what it receives and passes it on to a receiver of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests import provision
from tests.services.server_process import LOOPBACK, Server, accepting

_CONFIG = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "{address}"}}}}}}}}
exporters:
  otlp_http:
    endpoint: "{to}"
    compression: none
    sending_queue: {{enabled: false}}
    retry_on_failure: {{enabled: false}}
service:
  pipelines:
    traces: {{receivers: [otlp], exporters: [otlp_http]}}
    metrics: {{receivers: [otlp], exporters: [otlp_http]}}
    logs: {{receivers: [otlp], exporters: [otlp_http]}}
"""


@dataclass(eq=False)
class Collector(Server):
    """A collector that sends everything to the URL `to` before it answers, without a queue."""

    name: ClassVar[str] = "otelcol"
    to: str

    def prepare(self) -> None:
        config = _CONFIG.format(address=f"{LOOPBACK}:{self.port}", to=self.to.rstrip("/"))
        (self.folder / "config.yaml").write_text(config)

    def argv(self) -> Sequence[str | Path]:
        return [provision.OTELCOL / "otelcol", f"--config=file:{self.folder / 'config.yaml'}"]

    def ping(self) -> None:
        accepting(self.port)

    @property
    def url(self) -> str:
        """The value of `OTEL_EXPORTER_OTLP_ENDPOINT`."""
        return f"http://{LOOPBACK}:{self.port}"


def collector(to: str) -> Collector:
    """A running collector that passes everything on to this URL."""
    return Collector(to).start()
