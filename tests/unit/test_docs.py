"""Whoever follows a link of the documentation gets somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.console_browser import DOCUMENTED, IMAGES
from tests.support.markdown_sentences import paragraphs, sentences

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs/decisions"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += [ROOT / "bench/LOG.md", *sorted((ROOT / "examples").rglob("*.md"))]


def links(page: Path) -> list[tuple[Path, str]]:
    """The links of a page within the repository: where each leads, and its anchor."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text)
    return [
        ((page.parent / path).resolve() if path else page, anchor)
        for path, anchor in found
        if "://" not in path and not path.startswith("mailto:")
    ]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    slugs = []
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slugs.append(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return {slug if (before := slugs[:at].count(slug)) == 0 else f"{slug}-{before}" for at, slug in enumerate(slugs)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_to_something(page: Path) -> None:
    assert [str(target) for target, _ in links(page) if not target.exists()] == []
    assert [
        f"{target.name}#{anchor}" for target, anchor in links(page) if anchor and anchor not in anchors(target)
    ] == []


def test_every_picture_is_small_and_shown_by_a_page() -> None:
    shown = {target for page in PAGES for target, _ in links(page)}
    pictures = [file for file in (ROOT / "docs").rglob("*") if file.suffix in (".png", ".jpg", ".svg", ".webp")]
    assert len(pictures) >= 8
    assert [str(each.relative_to(ROOT)) for each in pictures if each.resolve() not in shown] == []
    assert [each.name for each in pictures if each.stat().st_size >= 120 << 10] == []


def test_the_pictures_of_the_console_are_those_that_its_tests_make() -> None:
    made = {f"console-{name}-{theme}.png" for name, theme in DOCUMENTED}
    assert {file.name for file in IMAGES.glob("*.png")} == made


def test_every_page_is_found_from_the_index() -> None:
    reached, ahead = set[Path](), [ROOT / "docs/index.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            ahead += [target for target, _ in links(page)]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []


def test_every_page_of_a_shelf_is_on_the_index() -> None:
    index = ROOT / "docs/index.md"
    listed = {target for target, _ in links(index)}
    contents = "\n".join(re.findall(r"```\{toctree\}(.*?)```", index.read_text(), re.DOTALL))
    for page in PAGES:
        if page.parent.parent == ROOT / "docs" and page.parent != DECISIONS:
            assert page in listed, page
            assert f"\n{page.relative_to(ROOT / 'docs').with_suffix('')}\n" in contents, page


def test_every_decision_has_its_number_and_a_day_and_is_listed() -> None:
    index = DECISIONS / "index.md"
    listed = [target.name for target, _ in links(index) if target.parent == DECISIONS]
    records = sorted(page.name for page in DECISIONS.glob("[0-9]*.md"))
    assert listed == records
    assert re.findall(r"^\d{4}-\S+$", index.read_text(), re.MULTILINE) == [name.removesuffix(".md") for name in records]
    for number, name in enumerate(records, 1):
        title, _, day, *_ = (DECISIONS / name).read_text().split("\n")
        assert name.startswith(f"{number:04d}-")
        assert title.startswith(f"# {number}. ")
        assert re.match(r"20\d\d-\d\d-\d\d\b", day), name
        assert "\n## Decision\n" in (DECISIONS / name).read_text(), name


OF_THE_CODE = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/explanation").glob("*.md")), *DECISIONS.glob("*.md")]
NAMED = re.compile(r"`((?:app|bench|bucketwire|deploy|docs|migrations|spark_jobs|tests|workers)/[\w/.-]*\w/?)`")


@pytest.mark.parametrize("page", OF_THE_CODE, ids=lambda page: page.name)
def test_every_file_that_a_page_about_the_code_names_is_there(page: Path) -> None:
    assert [
        name
        for name in NAMED.findall(page.read_text())
        if not any((ROOT / f"{name}{end}").exists() for end in ("", ".py"))
    ] == []


def test_the_results_of_the_benchmarks_are_one_page() -> None:
    assert len((ROOT / "docs/explanation/performance.md").read_text().splitlines()) <= 150


WORDS = (
    "at-least-once",
    "circuit breaker",
    "dead letter queue",
    "retry",
    "back-off",
    "idempotent",
    "ordering",
    "backlog",
)


@pytest.mark.parametrize("word", WORDS)
def test_a_search_for_the_words_of_the_field_finds_the_page_that_explains_it(word: str) -> None:
    guarantees = (ROOT / "docs/explanation/delivery-guarantees.md").read_text().lower()
    assert word in guarantees
    assert word in (ROOT / "docs/reference/glossary.md").read_text().lower()


GENERATED = {ROOT / "docs/reference/cli.md", ROOT / "docs/reference/settings.md"}  # by the code's own words
PRIVATE = re.compile(
    r"\b(lanes?|staging|hints?|figures?|thousand million|divided by commas|roll call|sign of life|in hand|told|tells"
    r"|S3 face|standing)\b(?!`)",
    re.IGNORECASE,
)


@pytest.mark.parametrize("page", sorted(set(PAGES) - GENERATED - {ROOT / "CHANGELOG.md"}), ids=lambda page: page.name)
def test_pages_use_the_words_of_the_glossary(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    assert [found[0] for found in PRIVATE.finditer(text)] == []


@pytest.mark.parametrize("page", sorted(set(PAGES) - GENERATED - {ROOT / "CHANGELOG.md"}), ids=lambda page: page.name)
def test_every_sentence_of_a_page_has_a_line(page: Path) -> None:
    for paragraph in paragraphs(page.read_text()):
        lines = [line.strip() for line in paragraph.text.split("\n")]
        assert lines == sentences(paragraph.text), f"{page.relative_to(ROOT)}:{paragraph.first + 1}"


def test_a_sentence_is_known_by_its_end() -> None:
    text = "A row, e.g. one.\nIt is `a. B` (see [a. b](c.md).) *Two* of 3.5 s. `x` stays.\n10 s pass"
    assert sentences(text) == [
        "A row, e.g. one.",
        "It is `a. B` (see [a. b](c.md).)",
        "*Two* of 3.5 s.",
        "`x` stays.",
        "10 s pass",
    ]
    assert [paragraph.text for paragraph in paragraphs("# H\n\n- a\n  b\n\n|c|\n|-|\n|d|\n\n> e\n")] == ["a\nb", "e"]


def test_every_cited_section_of_the_reference_is_there() -> None:
    page = (ROOT / "docs/reference/minio-behaviour.md").read_text()
    sections = set(re.findall(r"^##+ (\d+(?:\.\d+)?)", page, re.MULTILINE))
    sources = [path for folder in ("app", "workers", "spark_jobs") for path in (ROOT / folder).rglob("*.py")]
    cited = {
        (path.name, number)
        for path in sources
        # Pages of our own with sections of their own are cited by their path.
        for number in re.findall(r"§(\d+(?:\.\d+)?)", path.read_text())
    }
    assert len(cited) > 50
    assert sorted((name, number) for name, number in cited if number not in sections) == []
