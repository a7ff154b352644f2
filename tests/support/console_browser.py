"""Debian's Chromium as a person's browser on the console: what it reports, whom it asks, how accessible a page is."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from PIL import Image
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from tests import provision, services

ROOT = Path(__file__).parents[2]
# Pictures prove nothing, and take longer than what is asserted of a page: they are made where somebody asks for them.
ARE_PICTURES_WANTED = os.environ.get("SCREENSHOTS") == "docs"  # as `make screenshots` does
SCREENSHOTS = ROOT / "build/screenshots"
IMAGES = ROOT / "docs/how-to/images"  # where `make screenshots` keeps those of the documentation
DOCUMENTED = {
    *((name, "light") for name in ("overview", "target", "event", "dead-letters", "reconciliation", "rules")),
    *((name, "dark") for name in ("overview", "target")),
}
LARGEST = 120 << 10  # bytes of one of them
PATIENCE = 60_000  # ms that a page may take on a busy machine
# Words on two lines, and lists that are wider than their place. A word is of letters alone: a key, an address or an id
# may break at its other characters, and anywhere where it is longer than a word (`.long`).
_LAYOUT = r"""() => {
  const found = new Set();
  const range = document.createRange();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const [text, element] = [texts.currentNode, texts.currentNode.parentElement];
    range.selectNodeContents(text);
    if (range.getClientRects().length < 2 || element.closest(".long") || !element.checkVisibility()) continue;
    for (const word of text.data.matchAll(/\p{L}+/gu)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const places = [...range.getClientRects()].filter((place) => place.width);
      const lines = new Set(places.map((place) => Math.round(place.top)));
      if (lines.size > 1) found.add(`${word[0]} is broken: ${text.data.trim().slice(0, 80)}`);
    }
  }
  for (const list of document.querySelectorAll(".scroll:not(.tall)")) {
    if (list.scrollWidth > list.clientWidth + 1) found.add(`${list.getAttribute("aria-label")} is cut off`);
  }
  return [...found];
}"""
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
_RULES_OF_COLOURS = ["color-contrast", "link-in-text-block"]  # what another theme can break


def _with_few_colours(picture: Image.Image) -> Image.Image:
    """The picture in its 256 most frequent colours: all of the page's own, and most shades at the edges of letters."""
    colours: Any = sorted(picture.getcolors(1 << 24) or [], reverse=True)[:256]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in colours for part in colour])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium as a program that has no windows: one that hides its own takes three times as long."""
    services.need("chromium")
    # What is only for a desktop of a person is off, and so is what asks Google's servers for something.
    arguments = [
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--font-render-hinting=none",
    ]
    with sync_playwright() as playwright:
        browser = _launch(playwright, arguments + (["--no-sandbox"] if os.geteuid() == 0 else []))
        try:
            yield browser
        finally:
            browser.close()


def _launch(playwright: Playwright, arguments: list[str]) -> Browser:
    program = "/usr/bin/chromium-headless-shell"
    return playwright.chromium.launch(executable_path=program, args=arguments, timeout=PATIENCE)


@dataclass
class Visit:
    """One person's look at the console of an API: what the page reported, and whom it asked for something."""

    browser: Browser
    url: str  # of the API
    options: dict[str, Any] = field(default_factory=dict)
    theme: str = ""
    reported: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    page: Page = field(init=False)

    def __post_init__(self) -> None:
        # A colour that still changes from one theme to the other is none of either.
        context = self.browser.new_context(
            base_url=f"{self.url}/console/", timezone_id="Asia/Kolkata", locale="en-GB", reduced_motion="reduce",
            **self.options,
        )  # fmt: skip
        context.set_default_timeout(PATIENCE)
        self.page = context.new_page()
        self.page.on("console", self._report)
        self.page.on("pageerror", lambda error: self.reported.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def _report(self, message: Any) -> None:
        # The browser says so itself of every page with a status of 400 or more, which a wrong form has.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.reported.append(message.text)

    def sign_in(self, token: str) -> None:
        """Sign in on the page to which everything leads."""
        self.page.goto("")
        self.page.get_by_label("API token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(re.compile("/console/(?!sign-in)"))

    def problems(self, *, of_colours: bool = False) -> list[str]:
        """What an automatic check of accessibility (axe-core) finds on this page, or in its colours alone."""
        services.need("axe")
        if self.page.evaluate("typeof axe") == "undefined":
            self.page.evaluate((provision.AXE / "axe.min.js").read_text())
        rules = ["rule", _RULES_OF_COLOURS] if of_colours else ["tag", _RULES]
        found = self.page.evaluate(
            "([type, values]) => axe.run(document, {runOnly: {type, values}, resultTypes: ['violations']})", rules
        )
        return [
            f"{violation['id']}: {violation['help']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for violation in found["violations"]
            for node in violation["nodes"][:3]
        ]

    def problems_in_both_themes(self, picture: str) -> list[str]:
        """What the check finds on this page in each theme, and whether it is too wide for a small window; shoots it."""
        found: list[str] = []
        themes: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
        for theme in themes:
            self.page.emulate_media(color_scheme=theme)
            for width, suffix in ((1280, ""), (320, "-320")):
                self.page.set_viewport_size({"width": width, "height": 800})
                self.shoot(f"{picture}-{theme}{suffix}", whole=False)
                found += self.problems(of_colours=theme != "light")
                found += [f"{self.wide()} pixels too wide at {width}"] if self.wide() > 0 else []
        return found

    def layout_problems(self) -> list[str]:
        """Words of this page that are broken, lists that are cut off, and whether it is wider than the window."""
        found = [*map(str, self.page.evaluate(_LAYOUT))]
        return found + ([f"it is {self.wide()} pixels too wide"] if self.wide() > 0 else [])

    def wide(self) -> int:
        """By how many pixels the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def shoot(self, name: str, *, whole: bool = True) -> None:
        """Keep a picture of the page in build/screenshots, if pictures are wanted."""
        if not ARE_PICTURES_WANTED:
            return
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=whole, animations="disabled")

    def shoot_for_docs(self, name: str) -> None:
        """Keep a compact picture of the window, if pictures are wanted; in the documentation, if that shows it."""
        if not ARE_PICTURES_WANTED:
            return
        file = f"console-{name}-{self.theme}.png"
        picture = Image.open(io.BytesIO(self.page.screenshot(animations="disabled")))
        compact = io.BytesIO()
        _with_few_colours(picture.convert("RGB")).save(compact, "PNG", optimize=True)
        assert len(compact.getvalue()) < LARGEST, name
        folder = IMAGES if (name, self.theme) in DOCUMENTED else SCREENSHOTS / "docs"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(compact.getvalue())

    def check(self) -> None:
        """Nothing was reported, and nobody but the API was asked for anything."""
        assert self.reported == [], self.reported
        assert self.hosts <= {urlsplit(self.url).netloc}

    def close(self) -> None:
        """Leave."""
        self.page.context.close()
