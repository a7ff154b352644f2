"""The example of MinIO with everything set: its files are used as they are, and its page's commands are typed."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from tests import provision, services
from tests.services import forking, storage, until
from tests.support.service_processes import Role

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/minio"
BLOCK = re.compile(r"(<!-- by hand: [^\n]+ -->\n)?```sh\n(.*?)```", re.DOTALL)
READY = "Ctrl-C stops everything."


def environment(name: str) -> dict[str, str]:
    """The variables of a file that a shell would read."""
    return dict(re.findall(r"^(\w+)=(\S*)$", (FOLDER / name).read_text(), re.MULTILINE))


@contextmanager
def thumbnails(port: int, minio: services.MinIO) -> Iterator[None]:
    """The program, until the block ends."""
    env = os.environ | {
        "S3_ENDPOINT": minio.url, "PORT": str(port),
        "AWS_ACCESS_KEY_ID": storage.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": storage.SECRET_KEY,
    }  # fmt: skip
    log = services.new_folder("thumbnails") / "log"
    with log.open("w") as file:
        program = ROOT / "examples/thumbnails/thumbnails.py"
        child = subprocess.Popen([sys.executable, program], stdout=file, stderr=file, env=env)
    try:
        until(lambda: "thumbnails of" in log.read_text() or child.poll() is not None, 60, what="the program")
        assert child.poll() is None, log.read_text()
        yield
    finally:
        child.kill()
        child.wait()


def typed(places: Mapping[str, str], settings: Mapping[str, str]) -> Iterator[str]:
    """Type the page's blocks, one after the other; yield what each prints."""
    for skipped, block in BLOCK.findall((FOLDER / "README.md").read_text()):
        if skipped:
            continue
        command = block
        for told, actual in places.items():
            command = command.replace(told, actual)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=ROOT, env=os.environ | settings,
            capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        yield done.stdout


def jpeg(path: Path) -> Path:
    Image.new("RGB", (800, 600), "navy").save(path, "JPEG")
    return path


@pytest.mark.nightly("its files' lines; events of MinIO in test_minio.py")
def test_an_image_in_a_bucket_of_minio_gets_a_thumbnail(tmp_path: Path) -> None:
    listen, port = f"{services.LOOPBACK}:{services.free_port()}", services.free_port()
    declared = tmp_path / "bucketwire.yaml"
    declared.write_text((FOLDER / "bucketwire.yaml").read_text().replace("127.0.0.1:3000", f"127.0.0.1:{port}"))
    settings = environment("bucketwire.env")
    assert settings["BUCKETWIRE_LISTEN"] in environment("minio.env")["MINIO_NOTIFY_WEBHOOK_ENDPOINT_bw"]
    settings |= {"BUCKETWIRE_DATA_DIR": str(services.new_folder("var")), "BUCKETWIRE_LISTEN": listen}
    frontend = {name: value for name, value in environment("minio.env").items() if "_ROOT_" not in name}
    frontend["MINIO_NOTIFY_WEBHOOK_ENDPOINT_bw"] = f"http://{listen}/v1/events"
    frontend["MINIO_NOTIFY_WEBHOOK_QUEUE_DIR_bw"] = str(tmp_path / "queue")
    with (
        Role(["up", "--concurrency", "1"], settings, READY).start(),
        services.minio(extra_env=frontend) as minio,
        thumbnails(port, minio),
    ):
        places = {
            ".venv/bin/bucketwire": str(forking.command()),
            "examples/minio/bucketwire.yaml": str(declared),
            "http://127.0.0.1:9000": minio.url,
            "mc ": f"{provision.MC / 'mc'} --config-dir {minio.folder / 'example'} ",
            "photo.jpg local": f"{jpeg(tmp_path / 'photo.jpg')} local",
        }
        blocks = typed(places, settings)
        rules, listed = next(blocks), next(blocks)
        assert "arn:minio:sqs::bw:webhook" in rules
        assert "webhook:thumbnails" in rules
        assert "webhook:thumbnails" in listed
        assert next(blocks)
        client = minio.client()
        found = (each.object_name for each in client.list_objects("images-thumbnail", recursive=True))
        until(lambda: list(client.list_objects("images-thumbnail", recursive=True)), 60, what="the thumbnail")
        assert list(found) == ["2026/photo.jpg"]
        with client.get_object("images-thumbnail", "2026/photo.jpg") as answer:
            assert Image.open(io.BytesIO(answer.read())).size == (128, 96)
        assert re.search(r"photo.jpg(.|\n)*webhook:thumbnails (settled|pending)", next(blocks))
        assert next(blocks, None) is None
        client.put_object("images", "text.jpg", io.BytesIO(b"no image"), 8)
        letters = [forking.command(), "dead-letter", "ls", "--json"]

        def rejected() -> bool:
            done = subprocess.run(letters, env=os.environ | settings, capture_output=True, text=True, check=True)
            return "text.jpg" in done.stdout

        until(rejected, 60, what="a dead letter of what is no image")


@pytest.mark.parametrize("name", ["minio.env", "bucketwire.env"])
def test_every_line_of_an_environment_is_a_variable_or_a_comment(name: str) -> None:
    lines = (FOLDER / name).read_text().splitlines()
    assert all(re.fullmatch(r"(#.*|\w+=\S*|)", line) for line in lines)
