"""Each row of the page of who notices what: its alerts exist, and so does the test that holds it."""

from __future__ import annotations

import re

from tests.support.metric_expressions import ALERTS, ROOT

DEAD = "acceptance/test_dead_processes.py"
STATUS = "integration/cli/test_status.py"
RUNS = "integration/cli/test_failed_runs.py"
SOURCES = "integration/cli/test_sources.py"
REFUSALS = "integration/api/test_refusals.py"
CONTRACT = "contract/test_target_contract.py"
UPKEEP = "integration/outbox/test_upkeep.py"
NOBODY = ""
# What, the fault, and which test shows who notices it: file and name. The alerts are tested by test_alert_rules.py.
HELD = [
    (
        "an API, one of several", "killed, or its host is gone", DEAD,
        "test_a_dead_api_is_seen_by_who_needs_none_and_at_another_api",
    ),
    (
        "an API, one of several", "stopped (SIGSTOP), hangs", DEAD,
        "test_a_frozen_api_and_a_frozen_pool_are_seen",
    ),
    (
        "the last API", "killed, stopped or ended", DEAD,
        "test_apis_that_have_all_ended_in_order_are_missed_too",
    ),
    (
        "beat", "killed, stopped", DEAD,
        "test_a_dead_beat_is_seen_while_events_flow_and_what_it_missed_is_said",
    ),
    (
        "a worker that drains, delivers, pulls or runs Spark's jobs", "killed, stopped, or its host is gone", DEAD,
        "test_a_dead_worker_is_a_finding_of_its_host_until_another_has_replaced_it",
    ),
    (
        "all workers of a target", "ended in order", STATUS,
        "test_the_doctor_finds_a_queue_that_no_worker_serves",
    ),
    (
        "all processes of a worker's pool", "stopped", DEAD,
        "test_a_frozen_api_and_a_frozen_pool_are_seen",
    ),
    (
        "a worker that cannot use the broker", "the broker or its network", "unit/test_process_findings.py",
        "test_workers_that_are_there_and_serve_nothing_are_a_finding_with_their_reason",
    ),
    (
        "a run of Spark (reconciliation, scan, backfill, tables)", "killed", RUNS,
        "test_a_failed_run_is_said_with_what_the_last_good_one_found",
    ),
    ("Flower", "killed, stopped", NOBODY, ""),
    (
        "the broker", "killed, stopped, refuses the login", STATUS,
        "test_the_doctor_says_what_does_not_run_and_is_content_when_all_does",
    ),
    (
        "a target's queue at the broker", "refused", STATUS,
        "test_the_doctor_finds_a_queue_that_the_broker_refuses",
    ),
    (
        "the outbox database", "killed, stopped, refuses the login, full", STATUS,
        "test_a_database_that_is_away_is_one_problem",
    ),
    (
        "the drain", "does not run", STATUS,
        "test_the_doctor_says_what_does_not_run_and_is_content_when_all_does",
    ),
    (
        "the drain", "runs and fails each time: a statement, the database or the broker",
        "acceptance/test_observability.py", "test_drains_that_fail_are_counted_and_found_while_the_database_answers",
    ),
    (
        "the backlog of a target", "delayed for 5 minutes", STATUS,
        "test_a_delay_is_said_unless_something_that_causes_it_is",
    ),
    (
        "the backlog of a target", "near or at `queue_limit`", STATUS,
        "test_a_queue_that_fills_is_said_before_it_discards",
    ),
    (
        "dead letters", "there are some", STATUS,
        "test_dead_letters_and_discarded_events_are_said_and_nothing_is_well_with_them",
    ),
    (
        "rejected messages of a source", "there are some", SOURCES,
        "test_the_doctor_and_the_metrics_report_a_source_that_nobody_pulls_and_its_rejected_messages",
    ),
    (
        "the spool folder", "files wait, or one is quarantined", "unit/test_process_findings.py",
        "test_the_spooled_files_of_another_api_are_a_warning_that_names_it",
    ),
    (
        "the queue of a MinIO that sends", "stuck, full", "integration/test_alert_rules.py",
        "test_alerts_fire_and_end_as_their_tests_say",
    ),
    (
        "a reconciliation, scan or update of the tables that is due", "no Spark worker", RUNS,
        "test_what_is_overdue_is_said_where_neither_beat_nor_a_worker_runs",
    ),
    (
        "the same", "a Spark worker is there and does not begin it", STATUS,
        "test_the_doctor_finds_a_reconciliation_that_nobody_begins",
    ),
    (
        "the same", "failed", RUNS,
        "test_a_failed_run_is_said_with_what_the_last_good_one_found",
    ),
    (
        "what runs beside deliveries (purge, samples, schedule, notices and the others)", "failed", UPKEEP,
        "test_the_doctor_says_what_failed_and_why_and_what_is_overdue_as_one",
    ),
    (
        "the same", "late", UPKEEP,
        "test_the_doctor_says_what_failed_and_why_and_what_is_overdue_as_one",
    ),
    (
        "a source", "is not pulled from, its queue is away or refuses", SOURCES,
        "test_the_doctor_and_the_metrics_report_a_source_that_nobody_pulls_and_its_rejected_messages",
    ),
    (
        "a watched bucket", "is not listed, or its listing cannot be believed", SOURCES,
        "test_a_watched_bucket_shows_its_listings_and_what_its_frontend_does_not_send",
    ),
    (
        "a source", "has paused itself", SOURCES,
        "test_a_source_that_paused_itself_is_a_problem_and_one_that_an_operator_paused_a_warning",
    ),
    (
        "the same", "paused by hand", SOURCES,
        "test_a_source_is_paused_resumed_and_removed",
    ),
    (
        "a target", "has paused itself, by its answer (410)", STATUS,
        "test_a_target_that_paused_itself_is_a_problem_until_an_operator_pauses_or_resumes_it",
    ),
    (
        "the same", "paused by hand", STATUS,
        "test_the_doctor_tells_a_target_that_waits_from_one_that_is_broken",
    ),
    (
        "the token of a sender", "revoked, expired, unknown, or lacks a right", REFUSALS,
        "test_posts_that_are_refused_are_seen_by_log_metric_finding_alert_and_overview",
    ),
    (
        "the token of another client, or its S3 key", "revoked, expired, wrong", REFUSALS,
        "test_every_surface_counts_what_it_refuses",
    ),
    (
        "a token in use", "expires", STATUS,
        "test_the_doctor_warns_before_a_token_in_use_expires",
    ),
    (
        "who signs in to the console", "is refused", REFUSALS,
        "test_every_surface_counts_what_it_refuses",
    ),
    (
        "the login of a target", "refused", CONTRACT,
        "test_a_wrong_password_is_unavailable_within_the_time_limit_and_not_told",
    ),
    (
        "the login of a source", "refused", "integration/outbox/test_source_logs.py",
        "test_a_source_that_is_away_for_long_fills_no_log",
    ),
    (
        "the login of the broker", "refused", "acceptance/test_refusing_broker.py",
        "test_a_broker_that_refuses_ends_no_process_and_all_is_delivered_when_it_does_not",
    ),
    (
        "the login of the database", "refused", STATUS,
        "test_a_database_that_is_away_is_one_problem",
    ),
    (
        "the OpenID Connect provider, its client's secret", "away, refused", "integration/console/test_openid.py",
        "test_the_doctor_asks_the_provider_and_says_which_redirect_address_to_register",
    ),
    (
        "the keys of the targets' secrets", "lost", "unit/config/test_secrets.py",
        "test_a_lost_key_is_told_with_target_key_and_way_out",
    ),
    (
        "the API's own", "ends", "integration/api/test_tls.py",
        "test_until_when_its_certificate_is_valid_is_known_of_an_api",
    ),
    (
        "that of a target's or a source's server, the client's own, the authority", "ends", CONTRACT,
        "test_the_right_certificate_is_accepted",
    ),
    (
        "those of the database, the broker, the provider, if they are verified", "ends",
        "integration/test_met_certificates.py", "test_the_certificate_of_the_database_is_known_if_it_is_verified",
    ),
    (
        "that of a watched bucket's server", "ends", "contract/test_bucket_source.py",
        "test_the_certificate_of_its_server_is_known",
    ),
    (
        "that of a store that only Spark lists", "has ended", RUNS,
        "test_a_failed_run_is_said_with_what_the_last_good_one_found",
    ),
    (
        "that of a target's server, the authority", "is not trusted, has ended", CONTRACT,
        "test_a_wrong_certificate_is_refused",
    ),
    (
        "those of the database, the broker, the provider", "has ended", "contract/test_tls_errors.py",
        "test_a_handshake_that_fails_is_told_in_words",
    ),
]  # fmt: skip


def rows() -> list[list[str]]:
    page = (ROOT / "docs/reference/detection.md").read_text()
    lines = re.findall(r"^\| (?!what \|)(.+) \|$", page, re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_each_row_is_held_by_a_test_unless_nobody_notices_it() -> None:
    assert [tuple(row[:2]) for row in rows()] == [held[:2] for held in HELD]
    for (what, fault, file, name), row in zip(HELD, rows(), strict=True):
        if file == NOBODY:
            assert row[2].startswith("nobody"), what
        else:
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(), f"{what}, {fault}"


def test_each_alert_of_the_page_exists() -> None:
    named = {name for row in rows() for cell in row for name in re.findall(r"Bucketwire[A-Z]\w+", cell)}
    assert named - {rule["alert"] for rule in ALERTS} == set()
