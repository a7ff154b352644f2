"""`bucketwire apply`: targets and rules as a file declares them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from app.config.arn import TargetId
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.supervisor.start import sync_environment
from tests.integration.cli.conftest import Cli, Result
from tests.support.builders import event, registry
from tests.support.pulled_events import reject

FILE = """
targets:
  redis:cache:
    address: 127.0.0.1:6379
    key: events
    password: file:{folder}/secrets/password
  kafka:primary:
    brokers: [127.0.0.1:9092, 127.0.0.1:9093]
    topic: bucketevents
rules:
  - bucket: photos
    events: put,delete
    suffix: .jpg
    target: redis:cache
  - {{bucket: "*", events: ["*"], target: "arn:minio:sqs::primary:kafka"}}
"""


class Applied:
    """`bucketwire apply` of a text."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self._cli, self._folder = cli, folder
        (folder / "secrets").mkdir()
        (folder / "secrets" / "password").write_text("hush-hush-9f3\n")

    def __call__(self, text: str = FILE, *words: str) -> Result:
        path = self._folder / "bucketwire.yaml"
        path.write_text(dedent(text).format(folder=self._folder))
        return self._cli("apply", "-f", str(path), *words)


@pytest.fixture
def applied(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Applied:
    monkeypatch.setenv("BUCKETWIRE_SECRETS_DIR", str(tmp_path / "secrets"))
    return Applied(cli, tmp_path)


def holds(cli: Cli) -> tuple[list[str], list[tuple[str, str, str]]]:
    rules = cli("rule", "ls", "--json").json
    targets = [f"{target['type']}:{target['name']}" for target in cli("target", "ls", "--json").json]
    return targets, sorted((rule["bucket"], rule["suffix"], rule["target"]) for rule in rules)


DECLARED = (
    ["kafka:primary", "redis:cache"],
    [("*", "", "arn:minio:sqs::primary:kafka"), ("photos", ".jpg", "arn:minio:sqs::cache:redis")],
)


def test_a_dry_run_shows_the_plan_and_the_second_time_nothing_is_left_to_do(cli: Cli, applied: Applied) -> None:
    planned = applied(FILE, "--dry-run")
    assert "redis:cache: new" in planned.out
    assert "+ brokers=127.0.0.1:9092,127.0.0.1:9093" in planned.out
    assert "+ rule: photos s3:ObjectCreated:*,s3:ObjectRemoved:* suffix=.jpg -> redis:cache" in planned.out
    assert holds(cli) == ([], [])

    assert applied().code == 0
    assert holds(cli) == DECLARED
    assert "hush-hush" not in cli("config", "export", "--secrets").out, "the reference is kept, not the secret"

    again = applied()
    assert again.code == 0
    assert "everything is as declared" in again.out
    assert cli("config", "export").out.count("\n") == 2


def test_a_declared_target_is_whole_and_one_that_is_not_declared_stays_until_prune(cli: Cli, applied: Applied) -> None:
    applied()
    cli("target", "set", "redis:cache", "db=4")
    cli("target", "set", "webhook:extra", "endpoint=http://127.0.0.1:9/")
    cli("rule", "add", "photos", "arn:minio:sqs::extra:webhook")

    applied_again = applied()
    assert "- db=4" in applied_again.out
    assert "not declared and left as they are: 1 target, 1 rule" in applied_again.out
    assert "webhook:extra" in holds(cli)[0]

    pruned = applied(FILE, "--prune")
    assert "webhook:extra: removed" in pruned.out
    assert holds(cli) == DECLARED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("targts: {{}}", "did you mean targets?"),
        ("targets: {{redis:cache: {{adress: 127.0.0.1:1, key: k}}}}", "redis:cache: adress: is not a known setting"),
        ("targets: {{redsi:cache: {{}}}}", "did you mean redis?"),
        ("rules: [{{bucket: a, evnts: put, target: redis:x}}]", "rules[0].evnts: is not a known key; did you mean"),
        ("rules: [{{bucket: a, events: putt, target: redis:x}}]", "rules[0].events: “putt” is not an event name"),
        ("rules: [{{bucket: a, events: put, target: redis:x}}]", "rules[0].target: “redis:x” is not a known target"),
        ("rules: [{{bucket: a, events: put}}]", "rules[0].target: is not a target"),
        ("targets: {{redis:a: {{address: h}}, redis:a: {{}}}}", "'redis:a' is given twice"),
        ("targets: [", "line 1, column"),
        ("targets: {{redis:a: {{address: 'h:1', key: k, password: 'env:NOWHERE'}}}}", "the variable NOWHERE is empty"),
        ("[1]", "write targets:, sources:, buckets: and rules:"),
        ("sources: {{kafca:x: {{}}}}", "sources.kafca:x: is not a known source type; did you mean kafka?"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_place_and_nothing_changes(
    cli: Cli, applied: Applied, text: str, said: str
) -> None:
    refused = applied(text)
    assert refused.code == 1
    assert said in refused.err
    assert holds(cli) == ([], [])


def test_every_mistake_of_a_file_is_told_at_once_and_what_follows_from_another_is_not(applied: Applied) -> None:
    refused = applied("""
        targts: {{}}
        targets:
          redsi:cache: {{address: h, key: k}}
          redis:a: {{adress: h, key: k, db: x}}
          kafka:b: {{brokers: h:9092, topic: t, tls_ca: /x}}
        sources:
          kafka:s: {{brokers: h:9092}}
        buckets:
          photos: {{region: Mars}}
        rules:
          - {{bucket: a, evnts: put, target: redis:a}}
          - {{bucket: "a b", events: putt, target: nothing, min_size: huge}}
          - {{bucket: a, events: put, target: redsi:cache}}
          - {{bucket: a, events: put, target: redis:aa}}
        api: {{sync_events: perhaps}}
        """)
    assert refused.code == 1
    assert [line.strip().partition(" ")[0].strip(":") for line in refused.err.splitlines()[1:]] == [
        "targts", "targets.redsi:cache", "rules[0].evnts", "rules[1].target", "rules[1].min_size", "rules[1].bucket",
        "rules[1].events", "api.sync_events", "redis:a", "redis:a", "redis:a", "kafka:b", "kafka:s", "bucket:photos",
        "rules[3].target",
    ], refused.err  # fmt: skip


def test_more_than_one_transaction_may_change_is_refused_before_anything_waits_for_it(
    cli: Cli, applied: Applied
) -> None:
    targets = "".join(f"  webhook:t{number}: {{{{endpoint: http://127.0.0.1:9/}}}}\n" for number in range(501))
    refused = applied(f"targets:\n{targets}")
    assert refused.code == 1
    assert "declaration: changes 501 targets, sources and buckets; no event is recorded meanwhile" in refused.err
    assert "apply it in parts of 500 at most" in refused.err
    assert applied(f"targets:\n{targets}", "--dry-run").code == 0
    target = "targets:\n  webhook:t: {{endpoint: http://127.0.0.1:9/}}\nrules:\n"
    rules = "".join(f"  - {{{{bucket: b{number}, events: put, target: webhook:t}}}}\n" for number in range(5001))
    assert "apply it in parts of 5,000 at most" in applied(target + rules).err
    assert holds(cli) == ([], [])


def test_a_prune_that_would_lose_events_changes_nothing_at_all_unless_forced(
    cli: Cli, applied: Applied, database: Database
) -> None:
    applied()
    Log(database).append([[event("a.txt")]])
    refused = applied("targets: {{webhook:new: {{endpoint: 'http://127.0.0.1:9/'}}}}", "--prune")
    assert refused.code == 1
    assert "kafka:primary is in use: 1 undelivered event;" in refused.err
    assert holds(cli) == DECLARED

    assert applied("targets: {{webhook:new: {{endpoint: 'http://127.0.0.1:9/'}}}}", "--prune", "--force").code == 0
    assert holds(cli) == (["webhook:new"], [])


def test_targets_of_the_environment_may_be_named_by_rules_and_not_be_changed(
    cli: Cli, applied: Applied, database: Database
) -> None:
    environ = {"MINIO_NOTIFY_REDIS_ENABLE_env": "on", "MINIO_NOTIFY_REDIS_ADDRESS_env": "127.0.0.1:6379"}
    sync_environment(registry(database), environ | {"MINIO_NOTIFY_REDIS_KEY_env": "events"})
    rule = "rules: [{{bucket: a, events: put, target: redis:env}}]\n"
    assert applied(rule, "--prune").code == 0
    assert registry(database).target(TargetId("redis", "env")).enabled
    refused = applied(rule + "targets: {{redis:env: {{address: '127.0.0.1:1', key: k}}}}")
    assert refused.code == 1
    assert "change the variables" in refused.err


def test_the_schema_describes_the_file(cli: Cli) -> None:
    found: Any = cli("apply", "--schema").json
    assert found["properties"]["rules"]["items"]["required"] == ["bucket", "events", "target"]
    kafka = next(
        each for each in found["properties"]["targets"]["patternProperties"].values() if each["title"] == "Kafka"
    )
    assert "brokers" in kafka["required"]


FILTERED = """
targets:
  redis:cache: {{address: 127.0.0.1:6379, key: events}}
rules:
  - bucket: photos
    events: put
    target: redis:cache
    regex: "[0-9]+[.]jpg"
    metadata: {{x-amz-meta-color: blue, count: "1"}}
    tags: {{team: x, stage: prod}}
    min_size: 1KiB
    max_size: 1048576
  - {{bucket: photos, events: put, target: redis:cache, regex: "", tags: , min_size: ""}}
"""


def test_filters_are_declared_and_their_order_changes_nothing(applied: Applied, cli: Cli) -> None:
    plan = applied(FILTERED, "--dry-run").out
    assert "photos s3:ObjectCreated:* regex [0-9]+[.]jpg metadata x-amz-meta-color=blue" in plan
    assert applied(FILTERED).code == 0
    filtered, bare = cli("rule", "ls", "--json").json
    assert (filtered["min_size"], filtered["max_size"], filtered["tags"]) == (
        1024,
        1 << 20,
        {"team": "x", "stage": "prod"},
    )
    assert not {"regex", "tags", "min_size"} & bare.keys()
    again = FILTERED.replace("{{team: x, stage: prod}}", "{{stage: prod, team: x}}").replace("1KiB", "1024")
    assert "no changes" in applied(again).out
    assert "tag team=y" in applied(FILTERED.replace("team: x", "team: y"), "--dry-run").out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("1KiB", "huge", "rules[0].min_size"),
        ("1KiB", "2MiB", "is more than max_size"),
        ("{{team: x, stage: prod}}", "team=x", "rules[0].tags"),
        ("{{team: x, stage: prod}}", "{{team: [x]}}", "rules[0].tags"),
        ("[0-9]+", "(?=a)", "rules[0].regex"),
        ("regex:", "regexp:", "did you mean regex?"),
    ],
)
def test_a_filter_that_cannot_be_declared_is_named_with_its_place(
    applied: Applied, cli: Cli, old: str, new: str, said: str
) -> None:
    refused = applied(FILTERED.replace(old, new))
    assert (refused.code, said in refused.err) == (1, True), refused.err
    assert holds(cli) == ([], [])


DATABASES = """
targets:
  postgresql:rows:
    connection_string: "{postgresql}"
    table: events
  mysql:rows:
    dsn_string: "{mysql}"
    table: events
"""


def test_a_dry_run_shows_to_which_database_a_target_writes_and_no_password(
    cli: Cli, applied: Applied, database: Database
) -> None:
    """What `config export` and `target show` print can be applied again, and keeps the password."""
    document = DATABASES.format(
        postgresql="host=db user=me password=hush-hush dbname=rows", mysql="me:hush-hush@tcp(db:3306)/rows"
    )
    shown = {
        "postgresql": "host=db dbname=rows user=me password=*redacted*", "mysql": "me:*redacted*@tcp(db:3306)/rows",
    }  # fmt: skip
    planned = applied(document, "--dry-run").out
    assert f"+ connection_string={shown['postgresql']}" in planned
    assert f"+ dsn_string={shown['mysql']}" in planned
    assert applied(document).code == 0
    assert shown["postgresql"] in cli("target", "show", "postgresql:rows").out
    assert shown["mysql"] in cli("target", "show", "mysql:rows").out
    exported = cli("config", "export").out
    assert all(text in exported for text in shown.values())
    assert "hush-hush" not in exported + planned + cli("audit", "--json").out
    assert "everything is as declared" in applied(DATABASES.format(**shown)).out
    stored = [str(target.values) for target in registry(database).targets()]
    assert all("enc:" in values and "hush-hush" not in values for values in stored)
    assert cli("config", "export", "--secrets").out.count("hush-hush") == 2


SOURCES = """
sources:
  kafka:minio: {{brokers: [127.0.0.1:9092], topic: events, sasl: on, sasl_username: u, sasl_password: "{password}"}}
"""


def test_sources_are_declared_with_the_targets_and_pruned_like_them(
    cli: Cli, applied: Applied, database: Database
) -> None:
    document = FILE + SOURCES.replace("{password}", "hush-hush-9f3")
    planned = applied(document, "--dry-run")
    assert ("kafka:minio: new" in planned.out, "hush-hush" in planned.out) == (True, False)
    assert cli("source", "ls", "--json").json == []
    assert applied(document).code == 0
    assert "everything is as declared" in applied(FILE + SOURCES.replace("{password}", "*redacted*")).out

    changed = applied(document.replace("topic: events", "topic: others"))
    assert "- topic=events\n  + topic=others" in changed.out
    refused = applied(document.replace("sasl: on, ", "").replace("topic: events", "topik: events"))
    assert (refused.code, "kafka:minio: topik: is not a known setting; did you mean topic?" in refused.err) == (1, True)
    left = applied(FILE)
    assert "0 targets, 1 source, 0 rules; --prune removes them" in left.out

    reject(database, b"{")
    refused = applied(FILE, "--prune")
    assert (refused.code, "kafka:minio has 1 rejected message; " in refused.err) == (1, True)
    assert "kafka:minio: removed" in applied(FILE, "--prune", "--force").out
    assert cli("source", "ls", "--json").json == []
    assert holds(cli) == DECLARED


def test_what_fails_in_a_file_leaves_its_sources_as_they_were(cli: Cli, applied: Applied, database: Database) -> None:
    applied(FILE)
    Log(database).append([[event("a.txt")]])
    refused = applied(SOURCES.replace("{password}", "x"), "--prune")
    assert (refused.code, "is in use" in refused.err) == (1, True)
    assert cli("source", "ls", "--json").json == []
