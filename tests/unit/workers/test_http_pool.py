"""Connections of targets over HTTP: what is read before the first one."""

from __future__ import annotations

import ssl

import pytest

from app.config import tls
from app.config.target_settings import load
from workers.targets import create
from workers.targets.base import TargetUnavailable
from workers.targets.http_pool import http_pool

NOBODY = "http://127.0.0.1:1"
PLAIN: dict[str, dict[str, str]] = {
    "elasticsearch": {"url": NOBODY, "index": "i"},
    "sqs": {"queue_url": f"{NOBODY}/0/q", "access_key": "a", "secret_key": "b", "region": "r"},
    "webhook": {"endpoint": NOBODY, "allow_private": "on"},
}


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[ssl.SSLContext]:
    """The TLS contexts for which the system's authorities are read during the test."""
    made: list[ssl.SSLContext] = []
    monkeypatch.setattr("ssl.SSLContext.load_default_certs", lambda context, *_: made.append(context))
    return made


@pytest.mark.parametrize("type_name", PLAIN)
def test_a_target_without_tls_reads_no_authorities(type_name: str, contexts: list[ssl.SSLContext]) -> None:
    target = create(type_name, load(type_name, PLAIN[type_name]))
    with pytest.raises(TargetUnavailable, match="refused"):
        target.open()
    target.close()
    assert contexts == []


@pytest.mark.parametrize(
    ("endpoint", "proxy", "count"),
    [
        ("http://example.com/", "", 0),
        ("https://example.com/", "", 1),
        ("http://example.com/", "http://proxy:3128", 0),
        ("https://example.com/", "http://proxy:3128", 1),
        ("http://example.com/", "https://proxy:3128", 1),
        ("https://example.com/", "https://proxy:3128", 1),
    ],
)
def test_a_context_is_made_once_if_the_endpoint_or_its_proxy_has_tls(
    endpoint: str, proxy: str, count: int, contexts: list[ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.setenv(name, proxy)
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.delenv("no_proxy", raising=False)
    http_pool(endpoint, tls.context, guarded=False, connections=1).close()
    assert len(contexts) == count
