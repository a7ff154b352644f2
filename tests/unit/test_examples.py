"""The examples are the programs that tests run, and the commands beside them are right."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

from app.config.arn import parse_target
from app.config.target_settings import load

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGES = sorted((ROOT / "docs/reference/targets").glob("*.md"))
# Not on a page of a target: tests/contract/test_stream_pages.py runs it.
ELSEWHERE = {"elasticsearch_per_hour.py"}


def code(path: Path) -> str:
    """A program without its docstring."""
    text = path.read_text()
    docstring = ast.parse(text).body[0]
    assert isinstance(docstring, ast.Expr)
    return "\n".join(text.splitlines()[docstring.end_lineno :]).strip()


def test_the_subscribers_are_the_consumers_of_the_reference_pages_which_tests_run() -> None:
    shown = [
        program.strip() for page in PAGES for program in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    programs = {path.name: code(path) for path in sorted((EXAMPLES / "subscribers").glob("*.py"))}
    assert programs.keys() >= ELSEWHERE
    assert sorted(text for name, text in programs.items() if name not in ELSEWHERE) == sorted(shown)


def test_each_subscriber_says_how_its_target_is_set_and_what_to_install() -> None:
    types = set()
    for path in (EXAMPLES / "subscribers").glob("*.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert re.search(r"^ *pip install \S+$", docstring, re.MULTILINE), path.name
        [command] = re.findall(r"^ *bucketwire target set (.+)$", docstring, re.MULTILINE)
        name, *pairs = shlex.split(command)
        target = parse_target(name)
        load(target.type, dict(pair.split("=", 1) for pair in pairs))
        types.add(target.type)
    assert types == {page.stem for page in PAGES} - {"index"}
