"""What MinIO's guides print works here as typed, or is refused with what to type instead (docs/reference/guides.md)."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.config.arn import TargetId, parse_arn
from app.config.declared_types import TYPES, sections
from app.config.fields.fields import names_of
from app.config.formats.environment import variable
from app.config.settings import Settings
from app.config.target_settings import from_environ, load, parse_line
from app.config.targets.base import ordered_fields
from app.events.names import expand
from app.events.parsing import parse
from tests.integration.cli.conftest import Cli
from workers.systems.mysql import table as mysql_table
from workers.systems.postgresql import table as postgresql_table
from workers.targets import payloads

FOLDER = Path(__file__).parents[2] / "fixtures/guides"
OF_MINIO = set(TYPES) - {"sqs"}
GUIDES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("20*.md"))}
# What a reader writes in place of the placeholders of the guide of 2024.
FILLED = {
    "<ENDPOINT>": "kafka1.example.com:2021,kafka2.example.com:2021",
    'topic="<string>"': 'topic="bucketevents"',
    'TOPIC_<IDENTIFIER>="<string>"': 'TOPIC_PRIMARY="bucketevents"',
    "<string>": "",
    "<IDENTIFIER>": "PRIMARY",
    ":IDENTIFIER": ":PRIMARY",
    "EVENTS": "put",
    "ALIAS/BUCKET": "myminio/images",
}
# The lines that MinIO refuses as well, and the answer.
REFUSED = {
    "notify_nats:1": "nats:1: subject: is required; the subject of every message, such as bucketevents",
    "notify_postgres[:name]": "write notify_postgres:NAME, or notify_postgres for the unnamed target",
    "notify_mysql[:name]": "write notify_mysql:NAME, or notify_mysql for the unnamed target",
}


def blocks(guide: str) -> list[str]:
    return re.findall(r"```\n(.*?)\n```", GUIDES[guide], re.DOTALL)


def typed(text: str) -> str:
    """The text as a reader types it: without typographic quotes and dashes, with placeholders filled."""
    for printed, meant in {"“": '"', "”": '"', "‘": "'", "’": "'", "–": "-", "— ": "--"}.items():
        text = text.replace(printed, meant)
    for placeholder, value in FILLED.items():
        text = text.replace(placeholder, value)
    return text


# --- settings


def config_set_lines() -> list[list[str]]:
    """The arguments of each `mc admin config set`, as a shell splits them."""
    found = []
    for guide in GUIDES:
        for block in blocks(guide):
            joined = re.sub(r"\\\n\s*", " ", typed(block))
            found += [
                shlex.split(line) for line in re.findall(r"mc admin config set (.+?)(?: >)?$", joined, re.MULTILINE)
            ]
    return found


def test_every_config_set_line_works_as_typed_or_is_answered(cli: Cli) -> None:
    lines = config_set_lines()
    assert len(lines) == 13
    refused = set()
    for words in lines:
        result = cli("config", "set", *words)
        section = words[1]
        if section in REFUSED:
            assert result.code == 1
            assert REFUSED[section] in result.err
            refused.add(section)
        else:
            assert result.code == 0, result.err
    assert refused == REFUSED.keys()
    rows = cli("target", "ls", "--json").json
    assert {row["state"] for row in rows} == {"running"}
    assert {row["type"] for row in rows} == OF_MINIO - {"nats"}


def test_the_lines_for_an_existing_target_need_no_more_than_its_name(cli: Cli) -> None:
    """`notify_postgres[:name] connection_string=…`: how the guide of 2020 replaces the keys of before."""
    old = ["notify_postgres:1", "host=hostname", "port=2832", "username=psqluser", "table=bucketevents"]
    assert cli("config", "set", *old).code == 0
    [words] = [words for words in config_set_lines() if words[1] == "notify_postgres[:name]"]
    answer = cli("config", "set", "notify_postgres:1", *words[2:])
    assert "connection_string: *redacted* has username, which libpq calls user; write user=…" in answer.err
    fixed = words[2].replace("username=", "user=").replace("database=", "dbname=")
    assert cli("config", "set", "notify_postgres:1", fixed).code == 0
    cli("config", "set", "notify_mysql:1", "host=h", "username=u", "database=d", "table=t")
    [words] = [words for words in config_set_lines() if words[1] == "notify_mysql[:name]"]
    assert "conflicts with dsn_string" in cli("config", "set", "notify_mysql:1", *words[2:]).err
    assert cli("config", "set", "notify_mysql:1", *words[2:], "host=", "username=", "database=").code == 0


def test_every_line_that_config_get_prints_is_understood() -> None:
    shown = [
        line
        for block in blocks("2020")
        if block.startswith("$ mc admin config get")
        for line in re.findall(r"(notify_\w+:\w+ .*)$", block)
    ]
    assert len(shown) == 10
    assert {parse_line(line)[0].type for line in shown} == OF_MINIO


def test_every_key_and_variable_of_the_guides_help_exists() -> None:
    texts = [block for block in blocks("2020") if block.startswith("KEY: ")]
    assert len(texts) == 20
    for text in texts:
        cls = sections()[text.split()[1].partition("[")[0]]
        variables = re.findall(r"(MINIO_NOTIFY_\w+)", text)
        assert set(variables) <= {variable(cls, name) for name in ordered_fields(cls)}
        keys = re.findall(r"(?<= )([a-z_]+)\*? \((?:[a-z*]+|on\|off|namespace\*\|access|plain\|sha256\|sha512)\)", text)
        assert (len(variables) > 2) != (len(keys) > 2), text
        assert set(keys) <= names_of(cls).keys(), cls.section


def test_the_environment_of_the_guide_of_2024_is_a_target() -> None:
    [block] = [block for block in blocks("2024") if block.startswith("set MINIO_")]
    environ = dict(re.findall(r'^set (\w+)="(.*)"$', typed(block), re.MULTILINE))
    assert len(environ) == 16
    found = from_environ(environ)
    assert found.problems == []
    [(target, texts)] = found.targets.items()
    assert target == TargetId("kafka", "PRIMARY")
    assert load("kafka", texts)


def test_the_sync_mode_of_the_guide_of_2025_is_set_either_way(cli: Cli) -> None:
    [pair], [setting] = ([block for block in blocks("2025") if mark in block] for mark in ("MINIO_API", "api.sync"))
    name, _, value = pair.partition("=")
    assert Settings.from_environ({name: value}).sync_events == "on"
    assert cli("config", "set", *setting.split(".")).code == 0
    assert cli("config", "get", "api").out == "api sync_events=on\n"


# --- config.json


def documents(guide: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The blocks of config.json, with the commas and braces that the guides forget."""
    for block in blocks(guide):
        if begin := re.match(r'\s*"(\w+)": \{\s*"\d+": \{', block):
            text = re.sub(r"(?<=[\d\"e])\n(\s*\")", r",\n\1", block.strip().rstrip(","))
            yield begin[1], json.loads("{" + text + "}" * (1 + text.count("{") - text.count("}")))


@pytest.mark.parametrize(("guide", "number"), [("2016", 8), ("2017", 10)])
def test_every_block_of_config_json_is_imported(cli: Cli, tmp_path: Path, guide: str, number: int) -> None:
    file = tmp_path / "config.json"
    found = list(documents(guide))
    assert len(found) == number
    for type_name, document in found:
        file.write_text(json.dumps({"version": "19", "notify": document}))
        imported = cli("config", "import", str(file))
        assert (imported.code, f"{type_name}:1: " in imported.out) == (0, True), imported.err
        assert ("no format is given" in imported.err) == (
            type_name in ("redis", "elasticsearch") and "format" not in document[type_name]["1"]
        )
        assert ("clientId is left out" in imported.err) == ("clientId" in document[type_name]["1"])
    assert {row["state"] for row in cli("target", "ls", "--json").json} == {"running"}


# --- rules


@pytest.mark.nightly("the guide of 2020: the guides repeat each other", when=lambda guide: guide in {"2016", "2017"})
@pytest.mark.parametrize("guide", ["2016", "2017", "2020"])
def test_every_mc_event_command_works_as_typed(cli: Cli, guide: str) -> None:
    for cls in TYPES.values():
        pairs = " ".join(f'{key}="{text}"' for key, text in cls.example.items())
        for name in ("1", "myinstance"):
            assert cli("config", "set", f"{cls.section}:{name} {pairs}").code == 0
    options = r"((?: --(?:events?|suffix) \S+)*)"
    commands = re.findall(rf"mc (events?) add +(\S+) (arn:\S+){options}", typed("\n".join(blocks(guide))))
    assert len(commands) >= 8
    for word, bucket, arn, rest in commands:
        assert cli(word, "add", bucket, arn, *rest.split()).code == 0
        listed = cli("event", "list", bucket, arn, "--json").json
        assert [rule["target"] for rule in listed] == [parse_arn(arn)[1].arn()]
        assert [rule["suffix"] for rule in listed] == [".jpg"]
        expected = ["s3:ObjectCreated:*"] if " put" in rest else ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
        assert listed[0]["events"][: len(expected)] == expected
        cli("event", "remove", bucket, "--force")


def test_the_commands_of_the_guide_of_2024_name_the_target_in_another_case(cli: Cli) -> None:
    commands = [
        shlex.split(re.sub(r"\\\n\s*", " ", typed(block)))[1:]
        for block in blocks("2024")
        if block.startswith("mc event")
    ]
    assert len(commands) == 2
    for name, code in (("PRIMARY", 1), ("primary", 0)):
        cli("config", "set", f"notify_kafka:{name} brokers=h topic=t")
        for words in commands:
            result = cli(*words)
            assert result.code == code
            if code:
                assert "there is no target kafka:primary; did you mean kafka:PRIMARY?" in result.err


def test_every_event_name_of_the_guide_of_2025_is_known() -> None:
    [block] = [block for block in blocks("2025") if block.startswith("s3:")]
    names = block.replace("\\", "").splitlines()
    assert len(names) == 33
    assert all(expand(name) for name in names)


# --- samples


def samples(guide: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Each event that a guide shows, and the block that shows it."""
    for block in blocks(guide):
        text = typed(block)
        for literal in re.findall(r'"(?:\{\\"Records\\".*?)"(?=$|\n)', text, re.MULTILINE):
            yield json.loads(json.loads(literal)), block
        starts = [match.start() for match in re.finditer(r"\{(?=\s*\"(?:Records|EventType|EventName)\")", text)]
        for start in starts:
            yield json.JSONDecoder(strict=False).raw_decode(text, start)[0], block


@pytest.mark.parametrize(("guide", "number"), [("2016", 7), ("2017", 9), ("2020", 10), ("2025", 1)])
def test_every_sample_is_an_event_and_has_the_members_that_are_written_here(guide: str, number: int) -> None:
    found = list(samples(guide))
    assert len(found) == number
    for body, block in found:
        [event] = parse(orjson.dumps(body), {}, now_ms=0).events
        assert event.name == "s3:ObjectCreated:Put"
        assert event.path in ("images/myphoto.jpg", "images/gopher.jpg", "test-bucket/image.jpg")
        [record] = body["Records"]
        assert json.loads(event.record)["s3"]["object"]["key"] == record["s3"]["object"]["key"]
        if "EventName" in body:
            assert list(json.loads(payloads.log(event))) == list(body)
            assert json.loads(payloads.log(event)) == body
        elif "EventType" in body:
            assert list(json.loads(payloads.log(event, "guide"))) == list(body)
        elif "level" in body:  # before 2016-10 without type and key
            assert list(json.loads(payloads.log(event, "guide")))[2:] == list(body), block
        else:
            assert list(json.loads(payloads.records(event))) == list(body)


def test_every_sample_table_has_the_columns_that_are_created_here() -> None:
    columns = {
        (guide, *found)
        for guide in ("2016", "2017", "2020")
        for block in blocks(guide)
        for found in re.findall(r"\b(key|key_name) +\| +(value)\b", block)
    }
    ours = (postgresql_table._LAYOUT["namespace"][:2], mysql_table._VALUES["namespace"])
    assert {(key, value) for _, key, value in columns} == set(ours)
    assert len(columns) == 6
