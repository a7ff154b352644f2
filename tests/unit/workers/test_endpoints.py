"""Where the test of a target looks, by its settings."""

from app.config.target_settings import load
from app.config.targets.nats import NatsSettings
from workers.endpoints import endpoints_of


def test_nats_that_begins_with_tls_needs_no_authority_of_its_own() -> None:
    [endpoint] = endpoints_of(load(NatsSettings, {"address": "h", "subject": "s", "tls_handshake_first": "on"}))
    assert endpoint.context is not None
    assert endpoint.context().check_hostname
