"""The page on mc, boto3 and minio-py: every command of it, run as it stands there, at the address of a test's API."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.api.conftest import S3
from tests.services import new_folder, until
from tests.support.api_requests import body
from tests.support.builders import add_target, registry

PAGE = (Path(__file__).parents[3] / "docs/how-to/use-mc-and-sdks.md").read_text()
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL)
MC, WATCH, ADMIN = [block for language, block in BLOCKS if language == "sh"]
BOTO3, MINIO, LISTEN, RESUME = [block for language, block in BLOCKS if language == "python"]
ARN_AND_RULE = 'arn:minio:sqs::audit:webhook s3:ObjectCreated:*,s3:ObjectRemoved:* Filter: prefix="in/"suffix=".jpg"'


@pytest.fixture
def ready(s3: S3) -> S3:
    """With the webhook of the page."""
    add_target(s3.database, "audit", bucket="other")
    return s3


def here(s3: S3, text: str) -> str:
    """The page's words with this API's address and keys."""
    known = {"127.0.0.1:8730": s3.place, '"bucketwire"': f'"{s3.access_key}"', "change-this-secret": s3.secret_key}
    for told, found in known.items():
        assert told in PAGE
        text = text.replace(told, found)
    return text


def ask_mc(s3: S3, command: str) -> str:
    words = shlex.split(here(s3, command))
    assert words[0] == "mc"
    if words[1:3] == ["alias", "set"]:
        words[5] = s3.access_key
    code, said = s3.mc(*words[1:]).done()
    assert code == 0, f"{command}: {said}"
    return said


def test_mc_manages_rules_as_it_does_at_minio(ready: S3) -> None:
    said = [ask_mc(ready, command) for command in MC.splitlines()]
    _, _, added, listed, one, removed, _, cleared, buckets = said
    assert "Successfully added arn:minio:sqs::audit:webhook" in added
    for shown in (listed, one):
        assert shown.split() == ARN_AND_RULE.split()
    assert "Successfully removed" in removed
    assert "Successfully removed" in cleared
    assert registry(ready.database).rules("images") == []
    assert "images/" in buckets


def test_mc_admin_manages_targets_as_it_does_at_minio(ready: S3) -> None:
    said = [ask_mc(ready, command) for command in ADMIN.splitlines()]
    sections, keys, applied, shown, info, job, _, _, _ = said
    assert sections.count("publish bucket notifications to") == 11
    assert "endpoint*" in keys
    assert applied == "Successfully applied new settings.\n"
    assert 'comment="makes thumbnails"' in shown
    assert json.loads(info)["info"]["sqsARN"] == [f"arn:minio:sqs::{name}:webhook" for name in ("audit", "thumbs")]
    assert "metrics_path: /minio/v2/metrics/cluster" in job
    assert [str(stored.target) for stored in registry(ready.database).targets()] == ["webhook:audit"]


def test_mc_says_what_is_wrong(ready: S3) -> None:
    ready.ask("PUT", "/images").raise_for_status()
    for arguments, words in (
        (("event", "add", "bw/images", "arn:minio:sqs::nobody:webhook"), "does not exist or is not well-formed"),
        (("event", "ls", "bw/nowhere"), "does not exist"),
        (("mb", "bw/images"), "already own it"),
    ):
        code, said = ready.mc(*arguments).done()
        assert code != 0
        assert words in said


def test_mc_shows_rules_that_it_has_no_word_for_and_adds_to_them(ready: S3) -> None:
    add_target(ready.database, "all", bucket="images", events=("*", "s3:LifecycleExpiration:*"))
    assert "s3:LifecycleExpiration:*" in ask_mc(ready, "mc event ls bw/images")
    ask_mc(ready, "mc event add bw/images arn:minio:sqs::audit:webhook --event scanner")
    assert [len(stored.rule.events) for stored in registry(ready.database).rules("images")] == [2, 2]


@contextmanager
def running(s3: S3, source: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program of the page; it is ended with the block. Its output goes to a file `said`."""
    path = new_folder("page") / "program.py"
    path.write_text(here(s3, source))
    with path.with_name("said").open("w") as said, path.with_name("errors").open("w") as errors:
        argv = [sys.executable, str(path), *arguments]
        program = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=errors, text=True)
    program.said = path.with_name("said")  # type: ignore[attr-defined]
    try:
        yield program
    finally:
        program.kill()
        program.wait(10)


def said(program: subprocess.Popen[str]) -> list[str]:
    """Its lines so far, none of which it is still writing."""
    return program.said.read_text().rpartition("\n")[0].splitlines()  # type: ignore[attr-defined,no-any-return]


def test_the_programs_of_the_page_run(ready: S3) -> None:
    ready.ask("PUT", "/images").raise_for_status()
    for source, words in ((BOTO3, "'Id': 'thumbnails'"), (MINIO, "['s3:ObjectCreated:*']")):
        with running(ready, source) as program:
            assert program.wait(30) == 0
            assert words in said(program)[0]
    assert registry(ready.database).rules("images") == []


def test_the_listeners_of_the_page_listen_and_resume(ready: S3) -> None:
    def post(*names: str) -> None:
        ready.api.post(body(*names)).raise_for_status()

    post("first")  # makes the bucket known
    with running(ready, LISTEN) as program:
        until(lambda: post("heard") or said(program), 20)
        last = said(program)[0].split()
        assert last[1] == "heard"
    post("missed")
    with running(ready, RESUME, last[0]) as program:
        until(lambda: any(line.endswith(" missed") for line in said(program)), 20)
        assert all(line.endswith((" heard", " missed")) for line in said(program))


def test_the_watching_commands_of_the_page_are_those_that_are_tested() -> None:
    """mc watch itself runs in test_listen.py."""
    assert WATCH.splitlines() == ["mc watch bw/images --events put,delete --suffix .jpg", "mc watch bw"]
