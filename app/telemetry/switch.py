"""Decide by OpenTelemetry's own variables which signals this process exports. Pure: imports nothing of OpenTelemetry.

Off unless asked for. `OTEL_EXPORTER_OTLP_ENDPOINT` asks for all three signals, `OTEL_EXPORTER_OTLP_<SIGNAL>_ENDPOINT`
or `OTEL_<SIGNAL>_EXPORTER=otlp` for one; `OTEL_<SIGNAL>_EXPORTER=none` leaves one out, `OTEL_SDK_DISABLED=true` all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_PROTOCOL = "http/protobuf"  # the only one of the exporters that are installed


@dataclass(frozen=True, slots=True)
class Signals:
    """The signals that are exported, and what of the variables has no effect, in sentences."""

    traces: bool = False
    metrics: bool = False
    logs: bool = False
    problems: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether anything is exported."""
        return self.traces or self.metrics or self.logs


def signals(environ: Mapping[str, str]) -> Signals:
    """Return what these variables ask for. An empty variable counts as unset."""
    if _text(environ, "OTEL_SDK_DISABLED").lower() == "true":
        return Signals()
    problems: list[str] = []
    traces, metrics, logs = (_is_on(environ, signal, problems) for signal in ("TRACES", "METRICS", "LOGS"))
    return Signals(traces, metrics, logs, tuple(dict.fromkeys(problems)))


def endpoint(environ: Mapping[str, str], signal: str) -> str:
    """Return where the environment sends a signal (traces, metrics or logs); "" for the default."""
    return _of(environ, signal.upper(), "ENDPOINT")[1]


def _is_on(environ: Mapping[str, str], signal: str, problems: list[str]) -> bool:
    name = f"OTEL_{signal}_EXPORTER"
    exporters = [word.strip().lower() for word in _text(environ, name).split(",") if word.strip()]
    unknown = [word for word in exporters if word not in ("otlp", "none")]
    if unknown:
        problems.append(f"{name}: {unknown[0][:40]!r} has no effect; the exporters are otlp and none")
    wanted = "otlp" in exporters if exporters else bool(endpoint(environ, signal))
    variable, protocol = _of(environ, signal, "PROTOCOL")
    if wanted and protocol not in ("", _PROTOCOL):
        problems.append(
            f"{variable}={protocol[:40]} is not supported, and nothing is exported by it; "
            f"use {_PROTOCOL}, for which a collector usually listens on port 4318"
        )
        return False
    return wanted


def _of(environ: Mapping[str, str], signal: str, option: str) -> tuple[str, str]:
    """Return the variable that sets an option of a signal's exporter, and its value."""
    own, common = f"OTEL_EXPORTER_OTLP_{signal}_{option}", f"OTEL_EXPORTER_OTLP_{option}"
    value = _text(environ, own)
    return (own, value) if value else (common, _text(environ, common))


def _text(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()
