"""Whoever follows a link of the documentation gets somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_to_something(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    places = re.findall(r"\]\(([^)#\s]+)", text)
    local = [place for place in places if "://" not in place and not place.startswith("mailto:")]
    assert [place for place in local if not (page.parent / place).exists()] == []


def test_every_page_is_found_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    linked = {(ROOT / "docs" / place).resolve() for place in re.findall(r"\]\(([^)#\s]+)", index)}
    lost = [
        str(page.relative_to(ROOT))
        for page in PAGES
        if page.is_relative_to(ROOT / "docs") and page != ROOT / "docs/index.md" and not {page, *page.parents} & linked
    ]
    assert lost == []


def test_every_cited_section_of_the_reference_is_there() -> None:
    page = (ROOT / "docs/reference/minio-behaviour.md").read_text()
    sections = set(re.findall(r"^##+ (\d+(?:\.\d+)?)", page, re.MULTILINE))
    sources = [path for folder in ("app", "workers", "spark_jobs") for path in (ROOT / folder).rglob("*.py")]
    cited = {
        (path.name, number)
        for path in sources
        # Pages of our own with sections of their own are cited by their path.
        for number in re.findall(r"(?<!libraries.md )(?<!design )§(\d+(?:\.\d+)?)", path.read_text())
    }
    assert len(cited) > 50
    assert sorted((name, number) for name, number in cited if number not in sections) == []
