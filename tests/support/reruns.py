"""Says at the end of a run why each test that ran a second time had failed: pytest itself names the test alone."""

from __future__ import annotations

import pytest
import pytest_rerunfailures
from _pytest.terminal import TerminalReporter

_LINES = 20  # of the traceback's end: the statement, the error, and what pytest explains of it


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have each process count the failures of its own tests.

    What it asks the first process for at each test, over a socket that is read byte by byte, matters only where another
    process goes on for one that was lost.
    """
    asking = getattr(session.config, "failures_db", None)  # that plugin's own: without it, the tests take longer
    if hasattr(session.config, "workerinput") and hasattr(asking, "sock"):
        asking.sock.close()
        session.config.failures_db = pytest_rerunfailures.StatusDB()  # type: ignore[attr-defined]


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
