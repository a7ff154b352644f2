"""The commands of the tutorials, and of guides, do what the pages say, typed one after the other at real servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests import provision, services
from tests.services import forking, storage, until
from tests.services.server_process import accepting
from tests.support.service_processes import Role

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs"
BLOCK = re.compile(r"(<!-- by hand: [^\n]+ -->\n)?```sh\n(.*?)```", re.DOTALL)
READY = "Ctrl-C stops everything."

pytestmark = pytest.mark.nightly("what `bucketwire up` starts, in cli/test_up.py; MinIO and each target by themselves")


class Tutorial:
    """The commands of a page or of a section, for a service that listens at `listen` and has the folder `var`."""

    def __init__(self, page: str, by_hand: int, section: str = "") -> None:
        text = (PAGES / page).read_text()
        if section:
            text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        self.text = text
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
        return [*self.steps(changes)]

    def steps(self, changes: Mapping[str, str]) -> Iterator[str]:
        """The same, each block typed when its output is asked for."""
        program = forking.command()
        places = {
            ".venv/bin/bucketwire": str(program),
            ".venv/bin/": f"{Path(sys.executable).parent}/",
            "$PWD/var/": f"{self.var}/",
            " var/": f" {self.var}/",
            "127.0.0.1:8730": self.listen,
            **changes,
        }
        for block in self.blocks:
            typed = block
            for told, actual in places.items():
                typed = typed.replace(told, actual)
            environ = os.environ | self.settings | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", typed], cwd=ROOT, env=environ,
                capture_output=True, text=True, timeout=90, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
            yield done.stdout

    def listed(self, bucket: str, times: int) -> None:
        """Return when a watched bucket was listed so often."""
        with httpx.Client(base_url=f"http://{self.listen}", trust_env=False) as client:

            def done() -> bool:
                listing = client.get(f"/v1/sources/bucket/{bucket}").json().get("listing", {})
                return bool(listing.get("listings", 0) >= times)

            until(done, 60, what=f"listing {times}")


def test_the_first_event_is_delivered_and_replayed_with_the_two_commands_alone() -> None:
    tutorial = Tutorial("tutorial/first-event.md", by_hand=1)
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
    tutorial = Tutorial("tutorial/minio-to-kafka.md", by_hand=3)
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


WATCH = "how-to/watch-a-bucket.md"


def test_what_minio_did_not_send_is_found_as_its_guide_says() -> None:
    guide = Tutorial(WATCH, by_hand=0, section="Find what your store did not send")
    webhook = (f"http://{guide.listen}/v1/events", "")
    with guide.running(), services.minio(webhooks={"bw": webhook}) as minio:
        steps = guide.steps(
            {
                "endpoint=http://127.0.0.1:9000": f"endpoint={minio.url}",
                "http://127.0.0.1:9000": minio.url,
                "mc ": f"{provision.MC / 'mc'} --config-dir {minio.folder / 'guide'} ",
            }
        )
        next(steps)
        guide.listed("images", 1)
        next(steps)
        guide.listed("images", 2)
        assert re.search(r"explained +2\n", next(steps))
        next(steps)
        guide.listed("images", 3)
        over = time.monotonic() + 6
        until(lambda: time.monotonic() > over, what="the end of the grace")
        next(steps)
        guide.listed("images", 4)
        shown = next(steps)
    assert re.search(r"removed +1\n", shown)
    assert "s3:ObjectRemoved:Delete" in shown
    assert "bucket:images" in shown


@dataclass(eq=False)
class GarageOfTheGuide(services.Garage):
    """Garage with the configuration of the guide, but for its ports and folders."""

    guide: str

    def prepare(self) -> None:
        [text] = re.findall(r"```toml\n(.*?)```", self.guide, re.DOTALL)
        ports = {":3900": f":{self.port}", ":3901": f":{services.free_port()}", '"garage/': f'"{self.folder}/'}
        for told, actual in ports.items():
            text = text.replace(told, actual)
        (self.folder / "garage.toml").write_text(text)

    def argv(self) -> Sequence[str | Path]:
        [options] = re.findall(r"(?m)^garage -c garage.toml (.*)$", self.guide)
        return [provision.GARAGE / "garage", "-c", self.folder / "garage.toml", *options.split()]

    def env(self) -> Mapping[str, str]:
        return dict(re.findall(r"(GARAGE_DEFAULT_\w+)=(\S+)", self.guide))

    def ping(self) -> None:
        accepting(self.port)


@pytest.mark.sender
def test_a_garage_is_watched_as_its_guide_says() -> None:
    guide = Tutorial(WATCH, by_hand=1, section="A store without notifications")
    with guide.running(), services.redis() as redis, GarageOfTheGuide(guide.text).start() as garage:
        steps = guide.steps(
            {
                "127.0.0.1:3900": f"{services.LOOPBACK}:{garage.port}",
                "127.0.0.1:6379": f"{services.LOOPBACK}:{redis.port}",
                "redis-cli": f"redis-cli -p {redis.port}",
                "mc ": f"{provision.MC / 'mc'} --config-dir {garage.folder / 'guide'} ",
            }
        )
        next(steps)
        assert "bucket:photos can be pulled from" in next(steps)
        guide.listed("photos", 1)
        shown = next(steps)
        assert re.search(r"created +1\n", shown)
        assert "s3:ObjectCreated:Put" in shown
        next(steps)
        guide.listed("photos", 2)
        with redis.client() as client:
            until(lambda: client.hkeys("photos") == [b"photos/after.md"], what="the changes at the target")
        [changes] = steps
    assert "s3:ObjectRemoved:Delete" in changes
    assert changes.endswith("photos/after.md\n")
