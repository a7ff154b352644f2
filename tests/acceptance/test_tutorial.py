"""The tutorials' commands do what the pages say, typed one after the other; with a real MinIO and a real Kafka."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import provision, services
from tests.services import forking, storage
from tests.support.service_processes import Role

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/tutorial"
BLOCK = re.compile(r"(<!-- by hand: [^\n]+ -->\n)?```sh\n(.*?)```", re.DOTALL)
READY = "Ctrl-C stops everything."

pytestmark = pytest.mark.nightly("what `bucketwire up` starts, in cli/test_up.py; MinIO and each target by themselves")


class Tutorial:
    """A page's commands, for a service that listens at `listen` and has the folder `var`."""

    def __init__(self, page: str, by_hand: int) -> None:
        text = (PAGES / page).read_text()
        self.blocks = [command for skipped, command in BLOCK.findall(text) if not skipped]
        assert len(self.blocks) == text.count("```sh") - by_hand
        self.var = services.new_folder("var")
        self.listen = f"{services.LOOPBACK}:{services.free_port()}"
        self.settings = {"BUCKETWIRE_DATA_DIR": str(self.var), "BUCKETWIRE_LISTEN": self.listen}

    @contextmanager
    def running(self) -> Iterator[None]:
        with Role(["up", "--concurrency", "1"], self.settings, READY).start():
            yield

    def type(self, changes: Mapping[str, str]) -> list[str]:
        """What each block prints; the places on the page are changed to those of the test."""
        places = {
            ".venv/bin/bucketwire": str(forking.command()),
            ".venv/bin/": f"{Path(sys.executable).parent}/",
            "$PWD/var/": f"{self.var}/",
            " var/": f" {self.var}/",
            "127.0.0.1:8730": self.listen,
            **changes,
        }
        printed = []
        for block in self.blocks:
            typed = block
            for told, actual in places.items():
                typed = typed.replace(told, actual)
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", typed], cwd=ROOT, env=os.environ | self.settings,
                capture_output=True, text=True, timeout=90, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
            printed.append(done.stdout)
        return printed


def test_the_first_event_is_delivered_and_replayed_with_the_two_commands_alone() -> None:
    tutorial = Tutorial("first-event.md", by_hand=1)
    with tutorial.running():
        receipt, delivered, target, other, paused, _replay, health = tutorial.type({})
    assert '"recorded":1' in receipt
    assert re.search("redis:sample (settled|pending)", delivered)
    assert "redis:mirror: new" in target
    assert '"recorded":1' in other
    assert re.search("redis:mirror (settled|pending)", other)
    assert re.search(r"redis:mirror\s+paused", paused)
    assert "all is well" in health


def test_an_object_of_a_real_minio_becomes_an_event_in_a_topic() -> None:
    tutorial = Tutorial("minio-to-kafka.md", by_hand=3)
    webhook = (f"http://{tutorial.listen}/v1/events", "")
    with services.kafka() as kafka, tutorial.running(), services.minio(webhooks={"bw": webhook}) as minio:
        printed = tutorial.type(
            {
                "127.0.0.1:9092": f"127.0.0.1:{kafka.port}",
                "http://127.0.0.1:9000 minioadmin minioadmin": f"{minio.url} {storage.ACCESS_KEY} {storage.SECRET_KEY}",
                "mc ": f"{provision.MC / 'mc'} --config-dir {minio.folder / 'tutorial'} ",
            }
        )
    bucket, target, rules, _copy, message, delivered, paused, applied = printed
    assert "arn:minio:sqs::bw:webhook" in bucket
    assert "kafka:primary: new" in target
    assert "kafka:primary accepts events" in target
    assert "arn:minio:sqs::primary:kafka" in rules
    assert message.startswith('photos/cat.jpg {"EventName":"s3:ObjectCreated:Put"')
    assert re.search("kafka:primary (settled|pending)", delivered)  # it is in the topic; to settle takes a moment
    assert re.search(r"kafka:primary\s+paused", paused)
    assert "everything is as declared" in applied
