"""The tutorial's commands do what it says, typed one after the other against a real Kafka."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests import services
from tests.support.service_processes import Role

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial/first-event-to-kafka.md").read_text()
BLOCK = re.compile(r"(<!-- by hand: [^\n]+ -->\n)?```sh\n(.*?)```", re.DOTALL)
READY = "Ctrl-C stops everything."


def test_its_commands_bring_the_first_event_into_a_topic() -> None:
    blocks = [command for by_hand, command in BLOCK.findall(PAGE) if not by_hand]
    assert len(blocks) == PAGE.count("```sh") - 2
    with services.kafka() as kafka:
        var = services.new_folder("var")
        listen = f"{services.LOOPBACK}:{services.free_port()}"
        settings = {"BUCKETWIRE_DATA_DIR": str(var), "BUCKETWIRE_LISTEN": listen}
        with Role(["up", "--concurrency", "1"], settings, READY).start():
            said = []
            for block in blocks:
                typed = block.replace(".venv/bin/", f"{Path(sys.executable).parent}/").replace("var/", f"{var}/")
                typed = typed.replace("127.0.0.1:9092", f"127.0.0.1:{kafka.port}").replace("127.0.0.1:8730", listen)
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", typed], cwd=ROOT, env=os.environ | settings,
                    capture_output=True, text=True, timeout=90, check=False,
                )  # fmt: skip
                assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
                said.append(done.stdout)
    target, trial, rules, receipt, message, standing, paused, applied = said
    assert "kafka:primary: new" in target
    assert "kafka:primary takes events" in trial
    assert "arn:minio:sqs::primary:kafka" in rules
    assert '"recorded":1' in receipt
    assert message.startswith('plain/a.txt {"EventName":"s3:ObjectCreated:Put"')
    assert re.search("kafka:primary (settled|pending)", standing)  # in the topic it is; to settle takes a moment
    assert '"recorded":1' in paused
    assert re.search(r"kafka:primary\s+paused", paused)
    assert "everything is as declared" in applied
