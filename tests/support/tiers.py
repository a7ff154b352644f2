"""Which tests `make test` runs, tier 2, and which only `make nightly` and `make test-all` besides, tier 3.

A rule here moves parameters of a test that run the same code of ours over the same statements, or over the same
connection, as those that stay. The marker `tier3` moves a whole test, which can fail alone, because of what it costs.
docs/explanation/proof.md says of each what stays.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support.statement_cover import (
    COVER,
    FOLDER,
    NOT_ON_POSTGRESQL,
    ON_MARIADB,
    ON_POSTGRESQL,
    is_one_of,
)

USUAL, ALL = 2, 3
LEFT_OUT = pytest.StashKey[list[pytest.Item]]()  # of what was collected, what the chosen tier does not run
_MARKERS = {"heavy", "sender", "tier3"}

_SECOND_DATABASES = {"mysql", "mariadb"}
# Ways of using a target beside one that connects alike; and those that combine what two others have, or differ in the
# shape of a message alone.
SECOND_WAYS = {
    "amqp-headers",
    "elasticsearch-access",
    "mqtt-5",
    "mqtt-qos0",
    "mqtt-qos2",
    "mysql-access",
    "nats-streaming-async",
    "postgresql-access",
    "redis-access",
    "redis-stream",
    "sqs-fifo",
}
COMBINED_WAYS = {"mqtt-5-qos2", "redis-access-guide"}
OF_THE_CONNECTION = (
    "test_a_child_makes_a_connection_of_its_own",
    "test_a_closed_port",
    "test_a_delivery_takes_no_more",
    "test_a_closed_target_opens_itself",
    "test_a_frozen_server_cannot_hang_an_opening",
    "test_a_server_that_answers_late",
    "test_a_wrong_certificate",
    "test_a_wrong_password",
    "test_an_empty_call",
    "test_closing_is_harmless",
    "test_no_thread_socket_or_file",
    "test_nothing_of_the_host",
    "test_opening_ends_in_time",
    "test_opening_takes_no_more",
    "test_the_right_certificate",
)
OF_THE_MESSAGE = (
    "test_a_target_that_works_confirms",
    "test_cloud_events_in_json",
    "test_messages_have_the_members",
    "test_odd_keys",
    "test_opens_creates",
    "test_the_exact_body",
)

# A second way that is confirmed as the first is; the others have a loop of their own that waits for confirmations.
CONFIRMED_ALIKE = SECOND_WAYS - {"mqtt-qos0", "mqtt-qos2", "nats-streaming-async"}
OF_THE_CONFIRMATION = (
    "test_a_delivery_ends_in_time",
    "test_a_frozen_server_does_not_hang_the_worker",
    "test_a_killed_server",
)
ONE_AT_A_TIME = 1  # the window of a target that is not asynchronous
# What is in a message does not depend on how many are under way.
OF_EACH_MESSAGE = (
    "test_a_poison_event_holds_up_nothing",
    "test_delivering_twice",
    "test_odd_keys",
    "test_the_exact_body",
)
# What one call does is done up to 100 at a time by a second way, whose loop it is.
OF_THE_LOOP = ("test_nothing_is_sent_once", "test_once_the_time_is_up")
FIRST_OF_TWO = {
    "amqp-queue", "elasticsearch-namespace", "mqtt-qos1", "mysql-namespace", "nats-streaming", "postgresql-namespace",
    "redis-namespace", "sqs",
}  # fmt: skip
# Members of a message, by one function for all types that store messages.
MESSAGES = {"amqp-queue", "kafka", "mqtt-qos1", "nats-core"}
# Closed and opened again is every target; what was made before is found by those that make something.
MAKE_SOMETHING = {
    "amqp-headers",
    "elasticsearch-namespace",
    "mysql-namespace",
    "nats-jetstream",
    "postgresql-namespace",
}
# A server that takes longest to start again, and is none of the ten systems.
SLOW_TO_START = {"sqs"}
# A step of a target's test that is one code for all types is taken where it is the last, and over TLS of both kinds.
STEPS = {
    "test_a_closed_port_fails": {"redis-namespace", "webhook"},
    "test_a_wrong_certificate_fails": {"kafka", "postgresql-namespace", "webhook"},
    "test_a_wrong_password_fails": {"kafka", "mysql-namespace", "redis-namespace", "webhook"},
}
# Each quality of service, and each version of MQTT.
MQTT_WAYS = {("3.1.1", "0"), ("5", "1"), ("3.1.1", "2")}

# Whole workers of sources: the queues that remember who took what, or have several shares; with messages that take long
# the one that is lost first; where they only wait for room, one or two of these; and for an outbox that is away one
# whose positions the outbox has.
OF_WHOLE_WORKERS = {
    "test_a_database_that_is_away": {"redis_stream"},
    "test_a_full_shelf": {"redis_list"},
    "test_a_target_without_room": {"amqp", "redis_list"},
    "test_an_operators_pause": {"redis_stream"},
    "test_killed_and_stopped_workers": {"amqp"},
    "test_messages_that_grow": {"amqp"},
    "test_what_was_recorded_before": {"amqp", "jetstream", "kafka", "redis_list"},
    "test_a_broker_that_is_away": {"amqp", "redis_list"},
}
# Of the statuses by which one object is refused one of each kind: busy, not let in, gone, without a server behind it;
# to whole requests and to items of one; in either way of sending and kind of index.
REFUSED_BY_A_WEBHOOK = {(503, "on"), (401, "on"), (410, "off")}
REFUSED_BY_ELASTICSEARCH = {(502, False, "access"), (403, True, "namespace")}

OF_ANY_SQS = ("test_messages_are_recorded", "test_messages_without_valid_events")  # with groups and without

# Of what is wrong with a command of mc one of each kind, and of the documents that S3 takes and refuses.
LINES = {
    "set bw notify_kafka:x brokers=h:9092 tpic=t", "get bw notify_webhook:ONE", "reset bw notify_webhook:one",
    "set bw notify_webhook:env queue_limit=6", "history bw",
}  # fmt: skip
COMMANDS = {"user add bw alice alicealice", "service stop bw"}
DOCUMENTS = (
    "[none]", "[one]", "[two that differ in their ids]", "[a prefix and a suffix]", "[a regular expression]",
    "[the scanner family]", "[an unknown event]", "[a malformed ARN]", "[a target that is not there]", "[two prefixes]",
    "[the same rule twice]", "[a filter longer than a key]",
)  # fmt: skip
TYPES_AT_THE_API = {"kafka", "postgresql", "webhook"}

FLAGS = ["durable", "auto_deleted", "internal"]  # of an exchange, each of which is declared for one type of it

# Names of buckets that are hostile to a page, its links and its forms; and pages that are others with a filter.
HOSTILE_TO_PAGES = {"new\nline", "<script>alert(1)</script>", "%s%n%41", "..", "../../etc/passwd", "日本🎉"}
PAGES_ALIKE = {
    "events?state=dead", "events?follow=1", "events?since=1h&bucket=images", "dead-letters?reason=none",
    "dead-letters?target=webhook:none", "dead-letters?since=1h", "retries?bucket=none", "tokens?name=x",
    "audit?action=target", "targets/new", "targets/webhook/audit?since=7d",
}  # fmt: skip

# Servers of the tests that are started, killed and stopped as PostgreSQL is.
ENDED_ALIKE = {"mariadb", "minio", "mysql", "rabbitmq", "receiver"}

# The cases that stay show by what several entries or rows of a key are noticed, and who of them wins; and that the
# larger side is counted to its end.
CHOSEN_ALIKE = {
    ("a row of another bucket", True), ("a row that only seems malformed", True), ("a row with an entry", True),
    ("both", True), ("a row without an entry", False), ("nothing", True), ("an entry with a row", True),
}  # fmt: skip
COUNTED_ALIKE = {(7, 3), (0, 0)}

Parameters = Mapping[str, Any]
Rule = Callable[[str, Parameters], bool]


def _senders(name: str, parameters: Parameters) -> bool:
    """What is sent is folded by code of ours: every sender on SQLite, one on the others, whose statements it executes.

    On MySQL and MariaDB that is the repair, which asks the log what no other test asks there.
    """
    if parameters["outbox_url"] == "sqlite":
        return False
    if (parameters["name"], parameters.get("versioned")) != ("minio", True):
        return True
    return parameters["outbox_url"] in _SECOND_DATABASES and not name.startswith("test_a_repair")


def _explorer(name: str, parameters: Parameters) -> bool:
    """What the explorer finds on MySQL is tried; all pairs of operations are those of PostgreSQL."""
    return parameters["outbox_url"] == "mysql" and name.startswith("test_two_operations")


def _ways(name: str, parameters: Parameters) -> bool:
    """A second way does not connect otherwise; a combined one is there for its messages.

    The loops that send one event at a time are those of a first way.
    """
    way = parameters.get("running")
    if way not in SECOND_WAYS | COMBINED_WAYS:
        return False
    if parameters.get("window") == ONE_AT_A_TIME or (way in COMBINED_WAYS and not name.startswith(OF_THE_MESSAGE)):
        return True
    return name.startswith(OF_THE_CONNECTION) or (way in CONFIRMED_ALIKE and name.startswith(OF_THE_CONFIRMATION))


def _targets(name: str, parameters: Parameters) -> bool:
    """Any batch of one way of each type goes one event at a time, too, but those that only look into the messages."""
    way, window = parameters.get("running"), parameters.get("window")
    if name.startswith("test_messages_have_the_members"):
        return way not in MESSAGES
    if name.startswith(OF_THE_LOOP) and window != ONE_AT_A_TIME and way in FIRST_OF_TWO:
        return True
    if name.startswith("test_a_frozen_server_cannot_hang_an_opening"):
        return way != "kafka"
    if name.startswith(("test_a_closed_target_opens", "test_opens_what_it_created")):
        return way not in MAKE_SOMETHING
    if name.startswith("test_cloud_events") and way in SECOND_WAYS:
        return True
    started_again = name.startswith("test_a_killed_server") and way in SLOW_TO_START
    return started_again or _ways(name, parameters) or (window == ONE_AT_A_TIME and name.startswith(OF_EACH_MESSAGE))


def _hanging(name: str, parameters: Parameters) -> bool:
    """A server that is frozen hangs, too: what it is sent while it opens goes through a wire, what follows does not."""
    fault = parameters.get("fault")
    opening = name.startswith("test_opening_ends")
    return _ways(name, parameters) or fault == "drips" or (fault == "hangs" and not opening)


def _target_tests(name: str, parameters: Parameters) -> bool:
    """A step that needs no protocol is one code for all types, and a second way has the same steps."""
    way = parameters.get("running")
    return (
        _ways(name, parameters)
        or (way in SECOND_WAYS and name.startswith("test_a_target_that_works"))
        or any(name.startswith(word) and way not in stay for word, stay in STEPS.items())
    )


def _mqtt(name: str, parameters: Parameters) -> bool:
    """Version and quality of service are two things: each is there with one of the other."""
    pair = parameters.get("version"), parameters.get("qos")
    each = ("test_a_large_event", "test_a_topic_of_a_template", "test_a_topic_with_more")
    large = name.startswith(each) and parameters["window"] == ONE_AT_A_TIME
    return large or (None not in pair and "most" not in parameters and pair not in MQTT_WAYS)


def _sources(name: str, parameters: Parameters) -> bool:
    """A worker that pulls again has a source that begins anew, whatever has ended the one before.

    A source makes the same requests to a queue of SQS with groups and to one without.
    """
    if parameters.get("served") == "sqs" and not name.startswith(OF_ANY_SQS):
        return True
    return any(name.startswith(word) and parameters["served"] not in stay for word, stay in OF_WHOLE_WORKERS.items())


def _commands(name: str, parameters: Parameters) -> bool:
    """The command shows the steps, which each type takes within the test's process too."""
    served = parameters.get("served")
    return served == "sqs" or (name.startswith("test_the_command") and served != "amqp")


def _servers(_name: str, parameters: Parameters) -> bool:
    """What a server keeps when it is killed the contract suite and the kills of the service show for each.

    Servers end with the process that started them, however it ends.
    """
    return parameters.get("name") in ENDED_ALIKE or parameters.get("how", signal.SIGKILL) is None


def _refusals(name: str, parameters: Parameters) -> bool:
    """What is done about a refusal does not ask for its status; what each status means is put to the target alone."""
    if name.startswith("test_a_webhook_that_refuses"):
        return (parameters["status"], parameters["sync"]) not in REFUSED_BY_A_WEBHOOK
    if name.startswith("test_in_sync_mode"):
        return (parameters["sync"], parameters["format_"]) != ("on", "namespace")
    if name.startswith("test_refused_objects_alone"):
        return (parameters["sync"], parameters["number"]) not in {("on", 1), ("off", 2)}
    given = parameters.get("status"), parameters.get("per_item"), parameters.get("format_")
    return name.startswith("test_an_elasticsearch_that_refuses") and given not in REFUSED_BY_ELASTICSEARCH


def _comparisons(_name: str, parameters: Parameters) -> bool:
    """Every run plans adaptively, unless an operator has Spark do without; of several rows one aggregate chooses."""
    chosen = parameters.get("repeated"), parameters.get("has_single_rows")
    counted = parameters.get("objects"), parameters.get("target_rows")
    return parameters.get("planned") is False or chosen in CHOSEN_ALIKE or counted in COUNTED_ALIKE


def _behaviour(module: str) -> Rule:
    """What a test shows of the product it shows on PostgreSQL: on MySQL and MariaDB the statements are what counts.

    And on PostgreSQL, where nothing becomes of an event: it shows on SQLite what an operator reads. Where the text of a
    statement is MySQL's, MariaDB runs what shows something of locks, leases, errors, texts and times.
    """
    on_postgresql = ON_POSTGRESQL.get(module)

    def moves(name: str, parameters: Parameters) -> bool:
        url = parameters.get("outbox_url", parameters.get("empty_url"))
        if url == "postgresql":
            if is_one_of(NOT_ON_POSTGRESQL.get(module, ()), name):
                return True
            return on_postgresql is not None and not is_one_of(COVER[module] + on_postgresql, name)
        if url == "mariadb" and module in ON_MARIADB:
            return not is_one_of(ON_MARIADB[module], name)
        return module in COVER and url in _SECOND_DATABASES and not is_one_of(COVER[module], name)

    return moves


def _mc(name: str, parameters: Parameters) -> bool:
    """What the API says mc prints; each word of it has tests without mc."""
    if name.startswith("test_mc_prints_what_is_wrong"):
        return parameters["line"] not in LINES
    return name.startswith("test_other_commands") and parameters["line"] not in COMMANDS


def _documents(name: str, _parameters: Parameters) -> bool:
    """A document is read by one function, which has each of them as a unit, and MinIO has as well."""
    return name.startswith("test_a_document_that") and not name.endswith(DOCUMENTS)


def _table(name: str, parameters: Parameters) -> bool:
    """Each key and each wrong value of each type is a unit."""
    return name.startswith("test_every_key") and parameters["type_name"] not in TYPES_AT_THE_API


def _imports(name: str, parameters: Parameters) -> bool:
    """The commands of a group, and those that show something, are imported by one code."""
    return (
        parameters.get("group") in {"dead-letter", "retry", "rule", "token"} and name.startswith("test_help_of")
    ) or (name.startswith("test_a_command_imports") and parameters["line"] != "status")


def _names(name: str, parameters: Parameters) -> bool:
    """Whether a name is valid is a unit; a run asks for it once."""
    return name.startswith("test_a_run_with_an_invalid") and parameters["name"] not in {"nul\0", "..", ""}


def _rows(name: str, parameters: Parameters) -> bool:
    """A bucket without versions is listed where drift is found; MariaDB is read by MySQL's driver and statements.

    What MinIO wrote itself is the same in any store. One style of ids is read, and one has the names of buckets.
    """
    if name.startswith("test_a_bucket_is_listed"):
        return parameters["versioned"] is False
    if name.startswith("test_what_minio_itself_wrote"):
        return parameters["kind"] != "postgresql"
    if name.startswith("test_an_elasticsearch_index"):
        return parameters["style"] == "hash"
    return name.startswith("test_a_name_of_a_bucket") and parameters["store"] in {"mysql", "mariadb", "plain", "redis"}


def _pages(name: str, parameters: Parameters) -> bool:
    """The console makes no statement and no command of a name, which the API takes from it, nor of a filter."""
    if name.startswith("test_a_rule_for_a_hostile_bucket"):
        return parameters["bucket"] not in HOSTILE_TO_PAGES
    if name.startswith("test_a_page_is_whole"):
        return parameters["path"] in PAGES_ALIKE
    return name.startswith("test_every_link_leads") and parameters["prefix"] == ""


def _with(name: str, **values: Any) -> Rule:
    """A test with one of these values of each parameter: another test, or another value, runs the same code."""

    def moves(test: str, parameters: Parameters) -> bool:
        return test.startswith(name) and all(parameters.get(each) in value for each, value in values.items())

    return moves


def _either(*rules: Rule) -> Rule:
    return lambda test, parameters: any(rule(test, parameters) for rule in rules)


def _late_writes(name: str, parameters: Parameters) -> bool:
    """The newest event goes out once more, whatever it is, and to whatever target; each target's requests are held back
    in the contract suite.
    """
    given = parameters.get("kind"), parameters.get("removed")
    return name.startswith("test_an_old_write_that") and given != ("redis", False)


def _outages(name: str, parameters: Parameters) -> bool:
    """Who notices that a database hangs and what is done then are two things: each is there with one of the other."""
    if name.startswith("test_a_database_that_is_away"):
        return parameters["hurt"] == "stop"
    spooled = name.startswith("test_a_database_that_hangs_is_spooled")
    return name.startswith("test_a_database_that_hangs") and (len(parameters["before"]) > 1) is spooled


def _spool(name: str, parameters: Parameters) -> bool:
    """A file is not what its digest says, or holds what is no event, whatever it is instead."""
    if name.startswith("test_a_damaged_file"):
        return not name.endswith(("[cut]", "[changed]"))
    if name.startswith("test_a_file_that_holds"):
        return parameters["changed"].keys().isdisjoint({"key", "record"})
    return parameters.get("outbox_url") in _SECOND_DATABASES


def _tasks(name: str, parameters: Parameters) -> bool:
    """What a task does at its end, and how the broker is away, are two things."""
    given = parameters.get("does"), parameters.get("away")
    return name.startswith("test_a_task_that_ends") and given not in {("ack", "server"), ("requeue", "closed")}


# The API records and reads by the outbox, which is put to all four.
_ON_TWO = _with("test_", on_each=["mysql", "mariadb"])

# By module: whether the test of that name and these parameters is in tier 3 alone.
RULES: Mapping[str, Rule] = {
    "tests/acceptance/test_end_to_end.py": _with("test_a_target_that_is_down", kind=["redis"]),
    "tests/acceptance/test_shared_pool.py": _with("test_the_other_target", fault=["drips", "is slow"]),
    "tests/acceptance/test_stopped_workers.py": _late_writes,
    "tests/contract/test_amqp.py": _with("test_a_missing_exchange", type_=["direct", "topic", "headers"], flag=FLAGS),
    "tests/contract/test_elasticsearch.py": _either(
        _with("test_a_template_gives", window=[ONE_AT_A_TIME]),
        _with("test_an_index_of_a_template", window=[ONE_AT_A_TIME]),
    ),
    "tests/contract/test_elasticsearch_cluster.py": _with("test_", members=["two nodes"]),
    "tests/contract/test_flooding_server.py": _ways,
    "tests/contract/test_hanging_server.py": _hanging,
    "tests/contract/test_kafka.py": _either(
        _with("test_a_new_broker_is_spoken_to", version=["1.0.0", "4.3.0"]),
        _with("test_a_template_gives", window=[ONE_AT_A_TIME]),
        _with("test_a_topic_of_a_template", window=[ONE_AT_A_TIME]),
    ),
    "tests/contract/test_late_requests.py": _with("test_", mirror=["mariadb"]),
    "tests/contract/test_mqtt.py": _mqtt,
    "tests/contract/test_refused_object.py": _refusals,
    "tests/contract/test_source_contract.py": _sources,
    "tests/contract/test_source_test.py": _commands,
    "tests/contract/test_target_contract.py": _targets,
    "tests/contract/test_target_test.py": _target_tests,
    "tests/integration/api/test_connections.py": _with("test_a_sender_is_answered_while", sent=[b"", b"\x16"]),
    "tests/integration/api/test_console_routes.py": _ON_TWO,
    "tests/integration/api/test_events.py": _ON_TWO,
    "tests/integration/api/test_health.py": _ON_TWO,
    "tests/integration/api/test_large_events.py": _with("test_", own_server=["mariadb"]),
    "tests/integration/api/test_mc_admin.py": _mc,
    "tests/integration/api/test_metrics.py": _ON_TWO,
    "tests/integration/api/test_operations.py": _ON_TWO,
    "tests/integration/api/test_outage.py": _outages,
    "tests/integration/api/test_s3.py": _documents,
    "tests/integration/api/test_settings.py": _table,
    "tests/integration/api/test_spool.py": _spool,
    "tests/integration/cli/test_clients.py": _with("test_", client=["on this machine"]),
    "tests/integration/cli/test_guides.py": _with("test_every_mc_event", guide=["2016", "2017"]),
    "tests/integration/cli/test_local_api.py": _with(
        "test_what_shows", command=["target ls", "rule ls", "dead-letter ls"]
    ),
    "tests/integration/cli/test_problems.py": _with(
        "test_a_command_that_becomes", command=["reconcile run", "scan", "tables"]
    ),
    "tests/integration/console/test_pages.py": _pages,
    "tests/integration/console/test_sessions.py": _with("test_a_cookie", cookie=["gAAAAA", "a.b.c", "null"]),
    "tests/integration/outbox/test_frontend_order.py": _senders,
    "tests/integration/outbox/test_interleavings.py": _explorer,
    "tests/integration/outbox/test_origin.py": _with("test_", outbox_url=["mysql", "mariadb"], count=[60]),
    "tests/integration/test_otlp_exports.py": lambda _, parameters: parameters["collector"].__name__ == "refusing",
    "tests/integration/test_outboxes.py": _with("test_an_outbox_that_was_used", kind=["mysql", "mariadb"]),
    "tests/integration/test_services.py": _servers,
    "tests/integration/test_wakeups.py": _tasks,
    "tests/spark/test_compare.py": _comparisons,
    "tests/spark/test_findings.py": _with("test_what_is_written", has_executors=[False]),
    "tests/spark/test_reading.py": _rows,
    "tests/spark/tables/test_log_gaps.py": _with("test_a_log_that_fails_over_within", kept=[3]),
    "tests/spark/test_reconcile.py": _with(
        "test_drift_of_every_kind", target=["postgresql:rows", "mysql:rows", "elasticsearch:rows"]
    ),
    **{f"{FOLDER}/{module}.py": _behaviour(module) for module in {*COVER, *ON_MARIADB}},
    "tests/unit/api/test_admin_encryption.py": _with("test_", size=[15, 16 * 1024 - 1, 16 * 1024 + 1]),
    "tests/unit/test_cli_help.py": _imports,
    "tests/unit/test_reruns.py": _with("test_the_error_of", processes=[["-n", "1"]]),
    "tests/unit/workers/test_reconcile_jobs.py": _names,
    f"{FOLDER}/test_refused_events.py": _either(
        _behaviour("test_refused_events"),
        _with("test_an_event_larger_than_a_packet_fails", size=[None]),
        _with("test_a_database_that_goes_away_and_comes_back", kind=["mysql"]),
    ),
    f"{FOLDER}/test_maintenance.py": _either(
        _behaviour("test_maintenance"),
        _with("test_a_migration_that_was_killed", empty_url=["mysql"]),
        _with("test_of_two_that_migrate_at_once", empty_url=["mysql"]),
    ),
    f"{FOLDER}/test_append.py": _either(
        _behaviour("test_append"),
        _with("test_an_event_goes_to_any_number_of_targets", outbox_url=["sqlite", "postgresql", "mysql"]),
    ),
}


def tier(item: pytest.Item) -> int:
    """The lowest tier that runs a test."""
    if any(item.get_closest_marker(name) for name in _MARKERS):
        return ALL
    moves = RULES.get(item.nodeid.partition("::")[0])
    parameters = getattr(item, "callspec", None)
    return ALL if moves and parameters and moves(item.name, parameters.params) else USUAL
