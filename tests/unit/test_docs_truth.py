"""What the documentation tells people to type, set or call is there, with the options that it gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from werkzeug.routing import MapAdapter

from app.cli import bucketwire
from app.config.settings import _NOT_SETTINGS, Settings
from app.server.application import create_app
from spark_jobs.__main__ import jobs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
PAGES += sorted((ROOT / "examples").rglob("*.md"))
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code(page: Path) -> Iterator[str]:
    """Every line of a code block, and every piece of code in a line."""
    text = page.read_text().replace("\\\n", " ")
    yield from (line for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL) for line in block.splitlines())
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def commands(page: Path) -> Iterator[list[str]]:
    """The words behind each `bucketwire` that is a command."""
    for line in code(page):
        for found in re.finditer(r"(?:^|[\s(/;&|])(?<!:8730 )bucketwire ((?:[a-z-][\w-]*)(?: .*)?)", line):
            written = re.split(r"\s(?:#|\||&&|;|>)", found[1])[0]
            yield re.sub(r"[\[\]…()]", " ", written).replace("'", " ").replace('"', " ").split()


def unknown(words: list[str]) -> str:
    """What of a command line there is not; empty where all of it is."""
    command: click.Command = bucketwire
    context = click.Context(command)
    taken: list[str] = []
    while isinstance(command, click.Group) and len(words) > len(taken):
        names = words[len(taken)].split("|")
        found = [command.get_command(context, name) for name in names]
        if None in found:
            return "" if names[0].startswith("-") or names[0].isupper() else " ".join([*taken, words[len(taken)]])
        command = found[0] or command
        taken.append(names[0])
    own: click.Command | None = jobs  # the jobs' words are their own
    for name in taken:
        own = own.commands.get(name) if isinstance(own, click.Group) else None
    command = command if own is None or isinstance(own, click.Group) else own
    options = {option for each in command.get_params(context) for option in (*each.opts, *each.secondary_opts)}
    given = {word.partition("=")[0].rstrip(",.") for word in words if word.startswith("--")}
    missing = given - options - {"--help"}
    return f"{' '.join(taken)} {' '.join(sorted(missing))}" if missing else ""


@EACH_PAGE
def test_every_command_is_there_with_its_options(page: Path) -> None:
    assert [told for words in commands(page) if (told := unknown(words))] == []


@EACH_PAGE
def test_every_variable_of_ours_is_read(page: Path) -> None:
    settings = (ROOT / "docs/reference/settings.md").read_text()  # which a test holds to the declarations
    known = set(re.findall(r"`(BUCKETWIRE_[A-Z0-9_]+)[`\[]", settings)) | _NOT_SETTINGS
    assert set(re.findall(r"\bBUCKETWIRE_[A-Z0-9_]*[A-Z0-9]\b", page.read_text())) - known == set()


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> MapAdapter:
    folder = tmp_path_factory.mktemp("var")
    app = create_app(
        Settings.from_environ({"BUCKETWIRE_DATA_DIR": str(folder), "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9"})
    )
    app.extensions["bucketwire"].database.close()
    return app.url_map.bind("localhost")


@EACH_PAGE
def test_every_route_is_there(page: Path, routes: MapAdapter) -> None:
    written = {path.rstrip("/.") for line in code(page) for path in re.findall(r"(/v1/[a-z<>/_:-]*)", line)}
    named = {path: re.sub(r"<(?:number|id)>", "7", re.sub(r"<(?:type|name)>", "x", path)) for path in written}
    assert [path for path, tried in named.items() if not routes.allowed_methods(tried)] == []


def test_a_command_that_is_not_there_would_be_found() -> None:
    assert sum(1 for page in PAGES for _ in commands(page)) > 150
    assert unknown(["targets", "ls"]) == "targets"
    assert unknown(["dead-letter", "replay", "--evrything"]) == "dead-letter replay --evrything"
    assert unknown(["reconcile", "run", "images", "--fix"]) == "reconcile run --fix"
    assert unknown(["dead-letter", "replay", "--all"]) == ""


def test_every_figure_of_the_readme_and_the_comparison_is_one_that_was_measured() -> None:
    measured = "".join((ROOT / "docs/explanation" / name).read_text() for name in ("performance.md", "proof.md"))
    [table] = re.findall(r"^\| measured on .*?\n\n", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    figures = re.findall(r"\d[\d,.]*(?:\.\d+)? (?:ms|events/s)|\d{1,3}(?:,\d{3})+", table)
    assert len(figures) >= 8
    assert [figure for figure in figures if figure not in measured] == []
    [latency] = re.findall(r"p50 about (\d+) ms", (ROOT / "docs/explanation/comparison.md").read_text())
    [exact] = re.findall(r"p50 ([\d.]+) ms", table)
    assert abs(float(latency) - float(exact)) <= 1


def test_what_is_deprecated_is_announced_in_the_changelog_and_on_its_page() -> None:
    matrix = ROOT / "docs/reference/support-matrix.md"
    row = r"^\| \[([^]]+)\]\(([^)]+)\).* \| (\d+\.\d+\.0) \| (\d+\.\d+\.0) \|"
    rows = re.findall(row, matrix.read_text(), re.MULTILINE)
    assert rows
    releases = dict(re.findall(r"^## \[([^]]+)\].*?\n(.*?)(?=^## |\Z)", CHANGELOG, re.MULTILINE | re.DOTALL))
    for name, page, since, until in rows:
        announced = releases.get(since, releases["Unreleased"]).partition("### Deprecated\n")[2].partition("\n### ")[0]
        assert name in announced
        assert until in announced
        assert "[deprecated](../support-matrix.md#for-how-long)" in (matrix.parent / page).read_text()
