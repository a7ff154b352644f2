"""A worker of the API imports nothing of ours after it was forked: it would have a copy of it for itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
import app.server.gunicorn_conf
before = set(sys.modules)
import app.server.wsgi
print(*sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in ("app", "workers")))
"""


@pytest.mark.slow
def test_what_a_worker_needs_is_imported_before_it_is_forked(tmp_path: Path) -> None:
    settings = {
        "BUCKETWIRE_DATABASE_URL": f"sqlite:///{tmp_path}/outbox.db",
        "BUCKETWIRE_DATA_DIR": str(tmp_path),
        "BUCKETWIRE_SPOOL_DIR": str(tmp_path / "spool"),
    }
    imported = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=Path(__file__).parents[3],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=True,
    )
    assert imported.stdout.split() == ["app.server.wsgi"]
