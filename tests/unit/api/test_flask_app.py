"""The API's app compiles what makes addresses of its rules when an address is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask import Flask
from werkzeug.routing import Rule

from app.api.services import App
from app.config.settings import Settings
from app.server.application import create_app


def test_an_app_with_all_routes_compiles_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rule, "_compile_builder", None)  # it would be called
    app = create_app(Settings.from_environ({"BUCKETWIRE_DATA_DIR": str(tmp_path)}))
    assert len(list(app.url_map.iter_rules())) > 100
    assert app.test_client().get("/healthz").status_code == 200
    app.extensions["bucketwire"].database.close()


@pytest.mark.parametrize("rule", ["/p/<int:key>", "/p/<int(fixed_digits=3):key>", "/p/<path:rule>/<key>", "/p"])
@pytest.mark.parametrize("asked", [{"key": 7}, {"key": 7, "rule": "a/b c"}, {"key": 7, "more": "1&2"}])
def test_an_address_is_that_of_flask(rule: str, asked: dict[str, object]) -> None:
    values = {"rule": "x", **asked}
    answers = []
    for app in (App(), Flask("bucketwire", static_folder=None)):
        app.add_url_rule(rule, "page", lambda **_: "")
        with app.test_request_context():
            answers.append(app.url_for("page", **values))
    assert answers[0] == answers[1]
