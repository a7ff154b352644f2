"""`mc admin`, unmodified, and minio-py's MinioAdmin, beside a real MinIO where its output can be the same."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from minio.credentials import StaticProvider
from minio.error import MinioAdminException
from minio.minioadmin import MinioAdmin

from app.config.arn import TargetId
from app.config.targets.registry import sections
from app.outbox.registry import Registry
from tests import provision, services
from tests.integration.api.conftest import S3
from tests.support.builders import add_target, registry

ONE = TargetId("webhook", "one")


class Admin:
    """`mc` with one server as the alias `bw`."""

    def __init__(self, place: str, access_key: str, secret_key: str, folder: Path) -> None:
        services.need("mc")
        self._folder = folder
        self._env = {
            "MC_HOST_bw": f"http://{access_key}:{secret_key}@{place}",
            "HOME": str(folder),
            "PATH": "/usr/bin:/bin",
        }
        credentials = StaticProvider(access_key, secret_key)
        self.py = MinioAdmin(endpoint=place, credentials=credentials, secure=False)

    def argv(self, line: str) -> list[str]:
        words = shlex.split(line)
        assert words[0] == "mc"
        return [str(provision.MC / "mc"), "--config-dir", str(self._folder / "mc"), *words[1:]]

    def run(self, line: str, given: str = "") -> tuple[int, str]:
        """The exit code and the output of a line as a user types it; `given` is its standard input."""
        done = subprocess.run(
            self.argv(line), env=self._env, input=given, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def ok(self, line: str, given: str = "") -> str:
        code, said = self.run(line, given)
        assert code == 0, f"{line}: {said}"
        return said

    def refused(self, line: str, given: str = "") -> str:
        code, said = self.run(line, given)
        assert code == 1, f"{line}: {said}"
        assert said.startswith("mc: <ERROR> ")
        return said

    def keys(self, section: str) -> dict[str, str]:
        """The keys of a target, from mc's own parser."""
        [target] = json.loads(self.ok(f"mc --json admin config get bw {section}"))["config"]
        return {pair["key"]: pair["value"] for pair in target["kv"]}


@pytest.fixture
def bw(s3: S3) -> Admin:
    return Admin(s3.place, s3.access_key, s3.secret_key, s3.api.folder)


@pytest.fixture
def targets(s3: S3) -> Registry:
    return registry(s3.database)


@pytest.fixture(scope="module")
def theirs() -> Iterator[Admin]:
    """A real MinIO with a target of its environment, and one that is set."""
    with services.receiver() as receiver:
        environ = {f"MINIO_NOTIFY_WEBHOOK_{key}_env": value for key, value in environment(receiver.url).items()}
        with services.minio(extra_env=environ) as server:
            admin = Admin(server.endpoint, server.access_key, server.secret_key, server.folder)
            admin.ok(f"mc admin config set bw notify_webhook:one {one(receiver.url)}")
            server.kill()  # what was set is in force after a restart
            server.start()
            admin.url = receiver.url  # type: ignore[attr-defined]
            yield admin


def environment(url: str) -> dict[str, str]:
    return {"ENABLE": "on", "ENDPOINT": url, "AUTH_TOKEN": "t0ken", "QUEUE_LIMIT": "7"}


def one(url: str) -> str:
    return f'endpoint={url} auth_token=s3cret queue_limit=5 comment="a few words"'


def sections_in(said: str) -> dict[str, str]:
    """What `mc admin config get ALIAS | grep notify` prints."""
    return dict(line.split(maxsplit=1) for line in said.splitlines() if line.startswith("notify_"))


def rows(said: str) -> dict[str, list[str]]:
    """The keys of the help of a section, with their types."""
    lines = said.split("ARGS:\n")[1].splitlines()
    return {line.split()[0]: line.split() for line in lines if line.strip()}


def test_the_sections_are_those_of_minio(bw: Admin, theirs: Admin) -> None:
    ours = sections_in(bw.ok("mc admin config get bw"))
    assert ours == sections_in(theirs.ok("mc admin config get bw"))
    assert ours.keys() == sections().keys()


# MinIO's default, and ours, of the keys that both have and whose defaults differ.
OTHER_DEFAULTS = {
    ("notify_amqp", "delivery_mode"): ("0", "2"),
}


@pytest.mark.parametrize("section", sections())
def test_a_section_that_is_not_set_has_every_key_of_minio_with_its_default(
    bw: Admin, theirs: Admin, section: str
) -> None:
    ours, minio = bw.keys(section), theirs.keys(section) if section != "notify_webhook" else {}
    if section == "notify_webhook":
        minio = theirs.keys("notify_webhook:")
    assert minio.keys() - ours.keys() == set()
    differ = {(section, key): (minio[key], ours[key]) for key in minio if minio[key] != ours[key]}
    assert differ == {key: values for key, values in OTHER_DEFAULTS.items() if key[0] == section}


@pytest.mark.parametrize("section", sections())
def test_the_help_of_a_section_marks_the_mandatory_keys(bw: Admin, theirs: Admin, section: str) -> None:
    for option in ("", " --env"):
        ours = rows(bw.ok(f"mc admin config set bw {section}{option}"))
        minio = rows(theirs.ok(f"mc admin config set bw {section}{option}"))
        print(section, option, "only minio", minio.keys() - ours.keys())
