"""Every command of the page for scripts does what the page says."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests.integration.api.conftest import Start, token, url_of
from tests.support.builders import add_target, event

PAGE = Path(__file__).parents[3] / "docs/how-to/automate.md"


def test_every_command_is_answered(log: Database, start: Start) -> None:
    add_target(log, "audit", bucket="images")
    Log(log).append([[event("a b.txt")]])
    bearer = token(log, "read", "admin")["Authorization"].removeprefix("Bearer ")
    environment = {"API": start(url_of(log)).url, "TOKEN": bearer, "PATH": "/usr/bin:/bin"}
    blocks = re.findall(r"^## (.*?)\n.*?```sh\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    answers = {}
    for question, block in blocks:
        for line in block.splitlines():
            done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            answers.setdefault(question, []).append(json.loads(done.stdout or "{}"))
    assert len(answers) >= 10
    [events] = next(lines for question, lines in answers.items() if "this object" in question)
    [match] = next(lines for question, lines in answers.items() if "Which targets" in question)
    assert [one["event"] for one in events["events"]] == ["s3:ObjectCreated:Put"]
    assert match["rules"]
    [created, replays] = next(lines for question, lines in answers.items() if "got already" in question)
    assert created["id"] in {one["id"] for one in replays["replays"]}
