"""Paths that probes ask: they are answered whatever else is asked."""

from collections.abc import Mapping
from types import MappingProxyType

ALIVE, READY = "/healthz", "/readyz"
# With MinIO's, for `mc ready` and for load balancers that probe a MinIO; and which of ours answers each.
PROBES: Mapping[str, str] = MappingProxyType(
    {
        ALIVE: ALIVE,
        READY: READY,
        "/minio/health/live": ALIVE,
        "/minio/health/ready": READY,
        "/minio/health/cluster": READY,
        "/minio/health/cluster/read": READY,
    }
)
