"""Whoever asks for the metrics while a scrape is made gets that one: each takes long, and holds a thread."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from flask import Flask

from app.api.routes import metrics
from tests import services


class _Empty:
    def collect(self) -> Iterator[None]:
        yield from ()


def test_those_who_ask_at_the_same_time_get_one_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    made, goes_on = list[int](), Event()

    def scrape() -> _Empty:
        made.append(1)
        goes_on.wait(30)
        return _Empty()

    monkeypatch.setattr(metrics, "scrape", scrape)
    app = Flask("metrics")
    metrics.install(app, "sqlite://")
    app.register_blueprint(metrics.routes)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(lambda: app.test_client().get("/metrics")) for _ in range(8)]
        try:
            services.until(lambda: app.extensions["bucketwire_scrapes"]._known.get().waiting == 8, what="all of them")
        finally:
            goes_on.set()
        assert {one.result(30).status_code for one in asked} == {200}
    assert len(made) == 1
