"""`bucketwire rule …` in mc's words."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database
from app.resources.rule import MAX_REMOVED
from tests.integration.cli.conftest import Cli

ARN = "arn:minio:sqs::cache:redis"


@pytest.fixture
def cli(cli: Cli) -> Cli:
    assert cli("target", "set", "redis:cache", "address=127.0.0.1:6379", "key=events").code == 0
    return cli


def rules(cli: Cli, *words: str) -> list[tuple[str, list[str]]]:
    return [(rule["bucket"], rule["events"]) for rule in cli("rule", "ls", *words, "--json").json]


def test_without_a_choice_a_rule_asks_for_what_mc_asks_for(cli: Cli) -> None:
    assert cli("rule", "add", "images", ARN).code == 0
    assert rules(cli) == [("images", ["s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:ObjectAccessed:*"])]


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("ilm", ["s3:ObjectRestore:*", "s3:ObjectTransition:*"]),
        ("scanner", ["s3:Scanner:ManyVersions", "s3:Scanner:BigPrefix"]),
        ("replica", ["s3:Replication:*"]),
        ("put,s3:ObjectAccessed:Get,put", ["s3:ObjectCreated:*", "s3:ObjectAccessed:Get"]),
        ("*", ["*"]),
    ],
)
def test_words_of_mc_and_names_stand_for_events(cli: Cli, word: str, names: list[str]) -> None:
    assert cli("rule", "add", "images", ARN, "--event", word).code == 0
    assert rules(cli) == [("images", names)]


def test_every_bucket_and_every_event_can_be_asked_for(cli: Cli) -> None:
    added = cli("rule", "add", "*", ARN, "--event", "*")
    assert "redis:cache gets every event of every bucket" in added.out
    assert rules(cli, "*") == [("*", ["*"])]


def test_the_same_rule_twice_is_one_rule_and_another_filter_another(cli: Cli) -> None:
    numbers = [
        cli("rule", "add", "images", ARN, "--prefix", prefix, "--suffix", ".jpg", "--json").json["number"]
        for prefix in ("a/", "a/", "b/")
    ]
    assert numbers[0] == numbers[1] != numbers[2]
    assert "a/" in cli("rule", "ls").out


FILTERS = (
    "--regex", "in/[0-9]+", "--metadata", "color=blue", "--metadata", "a=b=c", "--tag", "team=x",
    "--min-size", "1MiB", "--max-size", "2000000",
)  # fmt: skip


def test_a_rule_has_further_filters_and_shows_them(cli: Cli) -> None:
    added = cli("rule", "add", "images", ARN, *FILTERS)
    assert "with regex in/[0-9]+ with metadata color=blue with metadata a=b=c with tag team=x with size>=1MiB" in (
        added.out
    )
    assert "filters" in cli("rule", "ls").out
    assert "tag team=x" in cli("rule", "ls").out
    assert "size<=2000000" in cli("target", "show", "redis:cache").out
    [rule] = cli("rule", "ls", "--json").json
    assert {name: rule[name] for name in ("regex", "metadata", "tags", "min_size", "max_size")} == {
        "regex": "in/[0-9]+", "metadata": {"color": "blue", "a": "b=c"}, "tags": {"team": "x"},
        "min_size": 1 << 20, "max_size": 2_000_000,
    }  # fmt: skip
    assert cli("rule", "add", "images", ARN, *FILTERS, "--json").json["number"] == rule["number"]
    assert cli("rule", "rm", "--id", str(rule["number"])).code == 0
    cli("rule", "add", "images", ARN)
    assert "filters" not in cli("rule", "ls").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["images", ARN, "--regex", "(?=a)"], "is not a regular expression"),
        (["images", ARN, "--min-size", "2KiB", "--max-size", "1KiB"], "is more than max_size"),
        (["images", ARN, "--event", "s3:ObjectCreated:Putt"], "did you mean s3:ObjectCreated:Put?"),
        (["images", ARN, "--event", "putt"], "“putt” is not an event name; did you mean put (s3:ObjectCreated:*)?"),
        (["images", "arn:minio:sqs::other:redis"], "there is no target redis:other"),
        (["im ages", ARN], "is not a bucket name"),
        (["images", ARN, "--prefix", "a/../b"], "prefix"),
        (["images", ARN, "--event", ""], "events: are missing"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_the_way_out(cli: Cli, words: list[str], said: str) -> None:
    refused = cli("rule", "add", *words)
    assert refused.code == 1
    assert said in refused.err
    assert rules(cli) == []


@pytest.mark.parametrize(
    "words", [["--tag", "team"], ["--metadata", "=x"], ["--min-size", "big"], ["--tag", "a=1", "--tag", "a=2"]]
)
def test_a_filter_that_is_no_pair_or_size_is_wrong_usage(cli: Cli, words: list[str]) -> None:
    assert cli("rule", "add", "images", ARN, *words).code == 2
    assert rules(cli) == []


def test_what_is_no_arn_is_wrong_usage(cli: Cli) -> None:
    refused = cli("rule", "add", "images", "redis-cache")
    assert refused.code == 2
    assert "write type:name" in refused.err


def test_rules_are_listed_by_bucket_and_target(cli: Cli) -> None:
    cli("target", "set", "redis:second", "address=127.0.0.1:6379", "key=more")
    for bucket, target in (("images", ARN), ("images", "redis:second"), ("videos", ARN)):
        cli("rule", "add", bucket, target, "--event", "put")

    assert [bucket for bucket, _ in rules(cli)] == ["images", "images", "videos"]
    assert len(rules(cli, "images")) == 2
    assert len(rules(cli, "images", "redis:second")) == 1
    assert rules(cli, "nothing") == []


def test_a_rule_goes_by_its_arn_by_its_number_or_with_all_of_its_bucket(cli: Cli) -> None:
    numbers = [
        cli("rule", "add", bucket, ARN, "--event", word, "--json").json["number"]
        for bucket in ("images", "videos")
        for word in ("put", "delete", "get")
    ]
    assert cli("rule", "rm", "--id", str(numbers[0])).code == 0
    assert cli("rule", "rm", "images", ARN, "--event", "delete").code == 0
    assert rules(cli, "images") == [("images", ["s3:ObjectAccessed:*"])]
    assert cli("rule", "rm", "images", ARN, "--json").json == {"removed": [numbers[2]]}
    assert cli("rule", "rm", "videos", "--force").code == 0
    assert rules(cli) == []


def test_nothing_goes_by_accident(cli: Cli) -> None:
    cli("rule", "add", "images", ARN)
    all_of_it = cli("rule", "rm", "images")
    assert (all_of_it.code, "--force" in all_of_it.err) == (2, True)
    assert cli("rule", "rm").code == 2
    assert cli("rule", "rm", "images", "--id", "1").code == 2
    assert cli("rule", "rm", "images", "redis:typo").code == 1
    assert cli("rule", "rm", "--id", "99").code == 1
    assert cli("rule", "rm", "images", ARN, "--suffix", ".png").code == 1
    assert len(rules(cli)) == 1


def test_the_lines_of_mc_work_with_its_names_and_its_alias(cli: Cli) -> None:
    """`mc event add myminio/images ARN --suffix .jpg` and the like, as MinIO's guides have them."""
    line = ("event", "add", "myminio/images", ARN, "--events", "put", "--suffix", ".jpg")
    assert cli(*line, "--ignore-existing").code == 0
    assert cli(*line, "-p").code == 0
    assert cli("event", "add", "myminio/*", ARN, "--event", "delete").code == 0
    for words in (["list", "myminio/images"], ["ls", "myminio/images/", ARN], ["list", "images"]):
        [rule] = cli("event", *words, "--json").json
        assert (rule["bucket"], rule["events"], rule["suffix"]) == ("images", ["s3:ObjectCreated:*"], ".jpg")
    assert cli("event", "list", "a/b/c").code == 2
    assert cli("event", "remove", "myminio/images", "--force").code == 0
    assert rules(cli) == [("*", ["s3:ObjectRemoved:*"])]


def test_the_words_that_mc_had_until_2018_work_too(cli: Cli) -> None:
    assert cli("events", "add", "myminio/images", ARN, "--suffix", ".jpg").code == 0
    assert len(cli("events", "list", "myminio/images", "--json").json) == 1
    assert cli("events", "remove", "myminio/images", "--force").code == 0
    assert "add" not in cli("event", "--help").out.split("Commands:")[1]


def test_a_key_is_tried_and_nothing_is_recorded(cli: Cli) -> None:
    assert cli("rule", "add", "images", ARN, "--prefix", "in/", "--min-size", "1KiB").code == 0
    tried = ("rule", "match", "bw/images", "in/cat.jpg", "--size", "2KiB")
    shown = cli(*tried)
    assert "in/" in shown.out
    assert "goes to redis:cache (running)" in shown.out
    assert [target["target"] for target in cli(*tried, "--json").json["targets"]] == [ARN]
    for words in (("other/cat.jpg",), ("in/cat.jpg", "--size", "1"), ("in/cat.jpg", "--event", "s3:Scanner:BigPrefix")):
        assert cli("rule", "match", "images", *words).out == "no rule matches it\n"
    assert cli("event", "history", "images", "in/cat.jpg", "--json").json == []


def test_more_rules_of_a_bucket_than_one_request_removes_are_removed(cli: Cli, database: Database) -> None:
    assert cli("rule", "add", "b", ARN, "--event", "*").code == 0
    with database.writing() as connection:
        row = dict(connection.execute(sa.select(tables.rules)).mappings().one())
        del row["id"]
        connection.execute(tables.rules.insert(), [row | {"prefix": str(number)} for number in range(MAX_REMOVED)])
    assert cli("rule", "rm", "b", "--force").out == f"removed {MAX_REMOVED + 1:,} rules\n"
    assert cli("rule", "ls", "--json").json == []
