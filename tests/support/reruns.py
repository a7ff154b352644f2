"""Says at the end of a run why each test that ran a second time had failed: pytest itself names the test alone."""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter

_LINES = 20  # of the traceback's end: the statement, the error, and what pytest explains of it


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print the first error of each test that was run again, whether it passed then or not."""
    reports: list[pytest.TestReport] = terminalreporter.stats.get("rerun", [])
    if reports:
        terminalreporter.section("why tests were run again")
    for report in reports:
        terminalreporter.line(f"{report.nodeid} failed in {report.when}:", yellow=True)
        for line in report.longreprtext.splitlines()[-_LINES:]:
            terminalreporter.line(f"  {line}")
        for name, text in report.sections:
            if name == "what the servers logged":
                terminalreporter.line(text)
