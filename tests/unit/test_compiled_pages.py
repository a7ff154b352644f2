"""Apps of the tests share what they have compiled, but only where it is the same."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import jinja2
import pytest
from flask import Flask, render_template

MANY = uuid4().hex


def _app(folder: Path, text: str) -> Flask:
    (folder / "page.html").parent.mkdir(exist_ok=True)
    (folder / "page.html").write_text(text)
    return Flask(uuid4().hex, template_folder=str(folder))


def _page(app: Flask) -> str:
    with app.test_request_context():
        return render_template("page.html", name="a")


def test_a_template_is_compiled_once_for_all_apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (_app(tmp_path, f"{MANY} {{{{ name }}}}") for _ in range(2))
    assert _page(first) == f"{MANY} a"
    monkeypatch.setattr(jinja2.Environment, "compile", None)
    assert _page(second) == f"{MANY} a"


def test_templates_of_one_name_and_other_text_are_not_taken_for_each_other(tmp_path: Path) -> None:
    apps = [_app(tmp_path / folder, f"{folder} {MANY} {{{{ name }}}}") for folder in ("one", "two")]
    assert [_page(app) for app in apps] == [f"one {MANY} a", f"two {MANY} a"]
