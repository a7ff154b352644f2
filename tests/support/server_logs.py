"""Keep what servers logged during a failed test, because their folders are removed when the tests end."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

KEPT = Path(__file__).parents[2] / "build" / "test-logs"
_LARGEST = 4 << 20  # bytes kept of one log, its end


def sizes(logs: Mapping[Path, str]) -> dict[Path, int]:
    """The present size of each log that is there."""
    found = {}
    for log in logs:  # of which a test process has hundreds, and each test asks
        with contextlib.suppress(OSError):
            found[log] = log.stat().st_size
    return found


def keep(test: str, logs: Mapping[Path, str], before: Mapping[Path, int], *, kept: Path = KEPT) -> list[Path]:
    """Copy what each log has gained since `before` into a folder named after the test; return the files written.

    `logs` has the server's name for each log. Files of an earlier failure of the same test are replaced.
    """
    folder = kept / re.sub(r"[^\w.-]+", "_", test)[-150:]
    shutil.rmtree(folder, ignore_errors=True)
    files = []
    for number, (log, name) in enumerate(logs.items()):
        gained = _since(log, before.get(log, 0))
        if gained:
            folder.mkdir(parents=True, exist_ok=True)
            files.append(folder / f"{number}-{name}.log")
            files[-1].write_bytes(gained)
    return files


def tail(file: Path, lines: int) -> list[str]:
    """The last lines of a kept log, indented, each cut at 300 characters."""
    found = file.read_text(errors="replace").splitlines()[-lines:] if lines else []
    return [f"    {line[:300]}" for line in found]


def _since(log: Path, start: int) -> bytes:
    try:
        with log.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(start, end - _LARGEST) if start <= end else 0)
            return file.read(_LARGEST)
    except OSError:  # removed by its test
        return b""
