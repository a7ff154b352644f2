"""The API's reference page names every route and every problem that there is, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from app.api.errors import PROBLEM_TYPES
from app.config.settings import Settings
from app.server.application import create_app

PAGE = (Path(__file__).parents[2] / "docs/reference/api.md").read_text()


def test_every_problem_is_on_the_page() -> None:
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \| ([0-9, ]+) \|", PAGE, re.MULTILINE)
    told = {kind: statuses for kinds, statuses in rows for kind in re.findall(r"`([a-z-]+)`", kinds)}
    assert told.keys() == PROBLEM_TYPES.keys()
    for kind, (status, _) in PROBLEM_TYPES.items():
        assert str(status) in told[kind], kind


def test_every_route_is_on_the_page(tmp_path: Path) -> None:
    settings = Settings.from_environ(
        {"BUCKETWIRE_DATA_DIR": str(tmp_path / "v"), "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9"}
    )
    (tmp_path / "v").mkdir()
    app = create_app(settings)
    app.extensions["bucketwire"].database.close()
    for rule in app.url_map.iter_rules():
        if rule.rule.startswith("/console/"):
            continue
        path = re.sub(r"<(?:int:)?(?:type_)?(name|number)>", r"<\1>", rule.rule).replace(
            "/<name>/<name>", "/<type>/<name>"
        )
        known = path in PAGE or path.rpartition("/")[2] in ("resume", "purge")
        assert known, path
