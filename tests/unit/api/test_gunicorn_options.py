"""How the API keeps the connections of senders."""

from __future__ import annotations

from app.config.settings import Settings
from app.server.gunicorn_options import options

GO_IDLE_SECONDS = 90  # IdleConnTimeout of http.DefaultTransport, which MinIO and other frontends in Go have


def test_an_idle_connection_is_closed_by_a_sender_in_go_first() -> None:
    """The other way round a POST may meet a connection that the API is closing, and Go repeats no POST."""
    assert options(Settings.from_environ({}))["keepalive"] > GO_IDLE_SECONDS
