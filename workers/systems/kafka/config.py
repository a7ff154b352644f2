"""Map settings to those of kafka-python's clients."""

import socket
import ssl
from typing import Any

from app.config.sources.kafka import KafkaSourceSettings
from app.config.targets.kafka import KafkaConnection, KafkaSettings
from workers.targets import tls

CLIENT_NAME = "Bucketwire"
BATCH_BYTES = 1_000_000  # a broker accepts 1,048,588 by default

_MECHANISMS = {"plain": "PLAIN", "sha256": "SCRAM-SHA-256", "sha512": "SCRAM-SHA-512"}
_MAX_REQUEST_BYTES = 16 * 2**20  # larger ones are not even sent; a broker's limit is lower, and its error clearer


def producer_config(chosen: KafkaSettings) -> dict[str, Any]:
    """Return the options of a `KafkaProducer`. Raises `TargetUnavailable` for unreadable certificate files."""
    milliseconds = round(chosen.timeout * 1000)
    return connection_config(chosen) | {
        "acks": "all",
        "enable_idempotence": chosen.is_idempotent,
        # Without idempotence only this preserves the order of the halves of a batch that was too large.
        "max_in_flight_requests_per_connection": 5 if chosen.is_idempotent else 1,
        "compression_type": None if chosen.compression_codec == "none" else chosen.compression_codec,
        # A batch is sent when its round is complete, not while it is being filled.
        "linger_ms": milliseconds // 2,
        "delivery_timeout_ms": milliseconds + milliseconds // 2,
        "max_block_ms": milliseconds,
        "batch_size": BATCH_BYTES,
        "max_request_size": _MAX_REQUEST_BYTES,
    }


def connection_config(chosen: KafkaSettings | KafkaSourceSettings) -> dict[str, Any]:
    """Return the options of any client. Raises `TargetUnavailable` for unreadable certificate files."""
    config: dict[str, Any] = {
        "bootstrap_servers": [str(broker) for broker in chosen.bootstrap],
        "client_id": CLIENT_NAME,
        "api_version": chosen.api_version,
        "request_timeout_ms": round(chosen.timeout * 1000),
        "reconnect_backoff_max_ms": 500,  # the default of 30 s would prolong every outage by as much
        "metrics_enabled": False,
        "socket_options": [
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        ],
        "security_protocol": ("SASL_" if chosen.sasl else "") + ("SSL" if chosen.tls else "PLAINTEXT"),
    }
    if chosen.sasl:
        config["sasl_mechanism"] = _MECHANISMS[chosen.sasl_mechanism]
        config["sasl_plain_username"] = chosen.sasl_username
        config["sasl_plain_password"] = chosen.sasl_password
    if chosen.tls:
        config["ssl_context"] = tls_context(chosen)
    return config


def tls_context(chosen: KafkaConnection) -> ssl.SSLContext:
    """Return the TLS context. Raises `TargetUnavailable` for an unusable file."""
    return tls.context(
        chosen,
        chosen.tls_ca,
        skip_verify=chosen.tls_skip_verify,
        client_cert=chosen.client_tls_cert,
        client_key=chosen.client_tls_key,
        names=("tls_ca", "client_tls_cert", "client_tls_key"),
    )
