"""Which tests of the outbox `make test` runs on MySQL and MariaDB too, and of some modules on PostgreSQL.

Of the modules here these few: together with the modules that are not here they execute every statement that any test of
the outbox executes there. test_statement_cover.py proves it and says what is missing. A module that is not here runs
whole on all four databases, as one does that is new: those of locks, leases, times, texts, limits, errors and costs.
Of modules that have such tests beside others, as sources, tokens and searches do, these tests are here too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

FOLDER = "tests/integration/outbox"
COVER: Mapping[str, tuple[str, ...]] = {
    "test_append": (
        "test_an_event_goes_to_any_number_of_targets",
        "test_events_are_dated_by_the_database_whatever_the_clock_of_the_host",
        "test_the_limit_is_exact_also_between_two_writers",
        "test_the_same_events_sent_at_the_same_time_are_recorded_once",
    ),
    "test_attempts": (
        "test_a_removed_target_leaves_the_record",
        "test_a_replays_range_counts_for_the_events_that_it_selects",
        "test_an_event_in_a_range_that_was_delivered_is_found_and_no_other",
        "test_the_requests_and_answers_of_a_target_are_bounded_and_the_newest_stay",
        "test_the_rows_of_a_target_are_bounded_and_failures_outlast_deliveries_and_outages",
    ),
    "test_audit": (
        "test_entries_are_filtered_paged_and_removed_when_they_are_old",
        "test_no_value_can_refuse_the_change_that_it_describes",
        "test_tokens_replays_and_dead_letters_are_recorded",
    ),
    "test_buckets": (
        "test_buckets_are_known_by_events_and_rules_and_each_once",
        "test_the_log_is_read_between_two_places_in_its_order",
    ),
    "test_console_sessions": ("test_sessions_that_begin_and_end_at_once_do_not_hinder_each_other",),
    "test_drain": (),
    "test_event_wait": (),
    "test_failing": ("test_an_event_that_is_not_sent_because_it_changes_nothing_is_no_success",),
    "test_future_times": (
        "test_a_breaker_lets_a_probe_pass_and_a_target_is_opened",
        "test_a_queue_is_probed_and_its_silence_is_noticed",
        "test_a_run_that_is_gone_is_replaced_and_the_schedule_goes_on",
        "test_a_worker_keeps_its_lease",
        "test_an_event_that_was_tried_in_the_future_is_due",
    ),
    "test_heartbeats": (
        "test_a_heartbeat_of_a_clock_that_was_ahead_is_brought_back",
        "test_a_worker_answers_for_what_it_serves",
        "test_a_worker_is_listed_until_it_ends_or_was_silent_for_an_hour",
    ),
    "test_idle_targets": ("test_work_among_idle_targets_is_found[new]",),
    "test_late_requests": ("test_the_newest_event_goes_out_again_after_the_latest_arrival[removed-Policy.MIRROR]",),
    "test_lost_leases": (
        "test_a_request_without_an_answer_is_kept_with_its_due_time_while_the_database_is_away",
        "test_after_a_late_write_a_mirror_holds_what_the_bucket_holds[marker]",
        "test_what_a_killed_worker_may_have_sent_is_followed_once_it_cannot_arrive_any_more[Policy.COMPATIBLE]",
    ),
    "test_maintenance": (
        "test_a_migration_that_was_killed_between_two_statements_is_made_again",
        "test_an_objects_history_says_where_each_event_stands",
        "test_migrations_go_up_down_and_up_again_and_match_the_models",
        "test_of_two_that_migrate_at_once_one_does_and_the_other_waits",
        "test_targets_of_the_environment_follow_it_and_one_broken_leaves_the_others",
    ),
    "test_mirror": (
        "test_access_and_tagging_leave_a_row_alone",
        "test_what_a_batch_reads_does_not_grow_with_the_events_of_its_key",
    ),
    "test_notices": (
        "test_drift_is_reported_with_its_counts_whichever_run_ends_last",
        "test_the_deaths_of_a_target_from_before_are_no_news_when_it_is_enabled",
        "test_two_that_notice_the_same_record_it_once",
    ),
    "test_object_versions": (
        "test_a_target_that_was_there_before_learns_from_the_log",
        "test_events_behind_a_parked_one_are_known",
        "test_of_many_versions_the_newest_are_kept_and_the_oldest_are_not_guessed",
        "test_the_purge_ends_what_was_known_for_a_target_that_is_no_mirror[removed]",
    ),
    "test_older_state": (
        "test_a_shorter_log_has_a_new_epoch_also_where_nobody_claims_anything",
        "test_the_end_of_the_log_is_not_that_of_another_epoch",
    ),
    "test_openings": (
        "test_a_failure_is_kept_with_its_reason_and_changes_neither_breaker_nor_counters",
        "test_an_offer_that_was_postponed_is_made_again_soon_and_counts_as_no_try",
    ),
    "test_parked": (
        "test_a_reason_with_any_characters_is_stored_and_wedges_nothing",
        "test_a_run_of_the_repair_reads_so_many_rows_and_the_next_goes_on_where_it_ended",
        "test_a_value_that_the_database_refuses_costs_its_own_reason_only",
        "test_objects_without_a_head_are_found_and_mended_once_and_others_left_alone",
    ),
    "test_parked_properties": (),
    "test_partition_states": ("test_a_leased_partition_shows_the_worker_that_has_it",),
    "test_partitions": (
        "test_a_rejected_event_dies_at_once_and_is_delivered_when_it_is_replayed",
        "test_whatever_a_target_answers_nothing_is_lost_and_every_object_stays_in_order",
    ),
    "test_query_cost": (
        "test_a_commit_at_a_full_target_does_not_grow_with_its_dead_letters",
        "test_a_look_for_work_does_not_grow_with_the_events_of_other_targets",
        "test_a_mark_of_the_log_does_not_grow_with_what_was_delivered",
        "test_a_retry_does_not_grow_with_the_events_behind_it",
        "test_a_turn_does_not_grow_with_the_parked_objects_that_are_due",
        "test_a_turn_does_not_grow_with_the_parked_objects_that_are_not_due",
        "test_a_worker_passes_over_the_events_of_other_targets_in_bounded_steps",
        "test_what_was_delivered_and_is_retained_costs_a_look_nothing",
    ),
    "test_rate_limits": (
        "test_a_removed_targets_bucket_is_removed",
        "test_the_api_wakes_no_worker_of_a_target_without_tokens",
        "test_what_was_not_needed_is_given_back",
    ),
    "test_reconciliations": (
        "test_a_run_that_the_version_before_has_ended_keeps_its_numbers",
        "test_creations_alone_can_count_as_being_on_their_way",
        "test_old_runs_are_forgotten_but_for_the_last_of_each_state",
        "test_the_end_of_the_log_at_a_moment_is_found",
        "test_the_newest_sequencer_of_a_key_is_found",
        "test_what_is_on_its_way_is_known_by_key",
    ),
    "test_record_budget": ("test_a_history_has_pages_of_bytes",),
    "test_refusals": (
        "test_an_outage_costs_no_attempt_and_is_over_when_it_is_over",
        "test_gone_for_everything_pauses_the_target[5]",
    ),
    "test_refused_events": (
        "test_a_database_of_small_packets_takes_many_events_at_once",
        "test_a_database_that_goes_away_and_comes_back_quarantines_nothing",
        "test_a_lock_that_is_held_for_long_quarantines_nothing",
        "test_an_event_at_which_the_connection_breaks_each_time_holds_nobody_up",
        "test_an_event_larger_than_a_packet_fails_its_own_request_only",
        "test_an_event_larger_than_a_packet_is_quarantined_and_the_rest_is_fed",
        "test_an_event_that_the_database_refuses_fails_its_own_request_only",
        "test_an_event_that_the_database_refuses_is_quarantined_and_the_rest_is_fed_in_order",
        "test_buckets_that_differ_by_trailing_blanks_only_do_not_hold_each_other_up",
        "test_most_of_a_request_is_recorded_where_one_event_is_refused",
    ),
    "test_removal": ("test_what_a_stopped_removal_has_left_parked_is_still_due",),
    "test_replays": (
        "test_families_of_names_are_replayed_as_their_members",
        "test_the_counters_balance_at_each_step_of_a_replay",
    ),
    "test_retention": (
        "test_a_dead_letter_does_not_bring_back_what_was_deleted_since",
        "test_an_event_that_came_late_is_not_written_when_what_supersedes_it_is_older_by_receipt",
    ),
    "test_retries": (
        "test_a_worker_that_is_sending_what_is_given_up_settles_nothing",
        "test_heads_are_listed_by_page_and_filter",
        "test_what_is_tried_now_is_due_at_once_and_keeps_its_attempts",
    ),
    "test_rules": (
        "test_a_rule_comes_back_as_it_was_stored_with_its_filters_in_their_order",
        "test_a_rule_that_two_add_at_once_is_there_once",
    ),
    "test_run_requests": (
        "test_a_cancelled_run_does_not_begin_and_one_that_runs_is_told_and_keeps_its_state",
        "test_a_request_that_only_compares_replaces_no_scheduled_run",
        "test_a_requested_run_waits_as_a_scheduled_one_does_and_repairs_as_requested",
        "test_findings_are_bounded_read_in_pages_and_go_with_their_run",
    ),
    "test_schedule": ("test_what_is_due_is_registered_once_for_each_target_and_bucket",),
    "test_search": (
        "test_a_page_of_dead_letters_reads_a_bounded_number_of_them",
        "test_a_time_range_is_exact_and_costs_what_it_has",
        "test_dead_letters_are_found_without_reading_the_log_between_them",
        "test_each_filter_finds_its_events_and_no_others",
        "test_what_is_settled_costs_a_search_for_pending_events_nothing",
    ),
    "test_series": (
        "test_of_two_that_sample_at_once_one_stores_its_samples",
        "test_samples_are_merged_by_the_database_as_here",
        "test_what_comes_in_has_a_rate_by_requests_and_for_each_source",
    ),
    "test_service_settings": ("test_the_variable_takes_precedence",),
    "test_setting_keys": ("test_two_callers_that_set_different_keys_both_succeed",),
    "test_sources": (
        "test_a_failing_source_that_no_worker_tries_again_waits_for_one",
        "test_a_message_that_the_database_refuses_whole_is_kept_without_its_body[place0]",
        "test_a_notice_of_lost_messages_ends_with_the_next_resume_or_another_queue",
        "test_a_rejected_message_is_read_back_retried_and_deleted",
        "test_a_source_has_one_holder",
        "test_a_source_that_is_removed_while_a_declaration_is_applied_is_removed_after_it",
        "test_invalid_settings_of_the_environment_for_a_while_lose_no_position",
        "test_long_headers_of_a_rejected_message_stop_nothing[x-other]",
        "test_processes_that_start_at_once_store_a_new_source_of_the_environment_once",
        "test_the_database_refuses_one_event_and_records_the_others",
        "test_what_an_operator_changes_ends_the_lease[pause]",
    ),
    "test_tokens": (
        "test_every_token_that_is_used_at_once_is_recorded",
        "test_several_may_make_the_first_token_at_once",
    ),
}

# Modules of what operators read and set, not of what becomes of events: of their other tests these run on PostgreSQL,
# since several connections meet in them, for its own errors and costs, and for the statements of the rest.
ON_POSTGRESQL: Mapping[str, tuple[str, ...]] = {
    "test_attempts": (
        "test_a_delivered_batch_costs_no_statement_more",
        "test_a_timeline_costs_what_is_kept_of_its_target_and_not_what_is_in_the_log",
        "test_the_last_failure_of_an_event_has_its_request_and_answer",
        "test_what_the_database_cannot_take_now_is_written_later",
    ),
    "test_audit": (),
    "test_console_sessions": (
        "test_a_session_is_active_at_every_process_until_one_ends_it",
        "test_no_row_tells_the_number_of_a_cookie",
        "test_sessions_that_have_expired_are_removed_by_the_next_that_begins",
    ),
    "test_notices": (
        "test_a_removed_target_leaves_nothing_to_be_mistaken_for_its_successors",
        "test_its_bucket_is_none_of_the_buckets",
        "test_many_targets_that_fail_at_once_hold_up_intake_for_a_few_statements",
    ),
    "test_reconciliations": ("test_backfills_and_reconciliations_of_a_target_exclude_each_other",),
    "test_run_requests": (
        "test_nothing_is_started_while_a_run_is_active_and_a_dead_one_hinders_nobody",
        "test_of_several_requests_at_once_one_registers_a_run",
        "test_what_has_no_rows_and_what_is_no_bucket_is_not_compared",
    ),
    "test_schedule": ("test_a_flood_of_names_is_scheduled_up_to_a_limit_and_pushes_out_nobody",),
    "test_series": (
        "test_a_sample_does_not_grow_with_what_is_parked_and_dead",
        "test_a_sample_has_the_counters_and_a_step_has_one",
        "test_a_step_has_the_delivery_times_since_the_one_before_and_five_minutes_have_their_sum",
        "test_delivery_times_are_counted_once_whoever_takes_the_sample",
        "test_of_idle_targets_the_five_minutes_are_written_once",
        "test_the_table_is_bounded_and_a_removed_target_leaves_it",
    ),
    "test_tokens": (
        "test_a_token_keeps_its_limits_also_where_the_database_is_away",
        "test_once_there_was_a_token_one_is_required_for_good",
        "test_the_last_use_of_a_token_is_recorded_once_a_minute",
        "test_tokens_of_the_version_before_are_recorded_when_they_are_seen_or_revoked",
    ),
}


# Of these modules MariaDB runs so many: it has MySQL's driver, dialect and text of a statement, and MySQL executes the
# cover. Those that stay are of locks, leases, errors, texts and times; a module that is not here runs as MySQL's does,
# and MariaDB executes each statement whose text is its own, by more than the quotes around names.
ON_MARIADB: Mapping[str, tuple[str, ...]] = {
    "test_attempts": (),
    "test_audit": ("test_no_value_can_refuse_the_change_that_it_describes",),
    "test_failing": (),
    "test_future_times": ("test_a_worker_keeps_its_lease",),
    "test_heartbeats": (),
    "test_idle_targets": (),
    "test_late_requests": (),
    "test_leases": (
        "test_a_claim_that_cannot_read_what_it_has_claimed_holds_nothing",
        "test_a_partition_has_one_worker_at_a_time_with_many_wakeups",
        "test_neither_a_renewal_nor_a_settlement_moves_the_end_of_a_lease_back",
        "test_of_workers_that_are_woken_at_once_one_probes",
        "test_workers_that_are_woken_at_once_get_different_partitions",
    ),
    "test_lost_leases": ("test_a_request_without_an_answer_is_kept_with_its_due_time_while_the_database_is_away",),
    "test_mirror": (),
    "test_notices": ("test_two_that_notice_the_same_record_it_once",),
    "test_object_versions": (),
    "test_older_state": (),
    "test_openings": (),
    "test_parked": (
        "test_a_reason_with_any_characters_is_stored_and_wedges_nothing",
        "test_a_value_that_the_database_refuses_costs_its_own_reason_only",
    ),
    "test_partition_states": (),
    "test_partitions": ("test_whatever_a_target_answers_nothing_is_lost_and_every_object_stays_in_order",),
    "test_query_cost": (),
    "test_rate_limits": (),
    "test_reconciliations": (),
    "test_record_budget": (),
    "test_refusals": (),
    "test_removal": (),
    "test_replays": (),
    "test_retention": (),
    "test_retries": ("test_a_worker_that_is_sending_what_is_given_up_settles_nothing",),
    "test_rules": ("test_a_rule_that_two_add_at_once_is_there_once",),
    "test_run_requests": (),
    "test_schedule": (),
    "test_search": (),
    "test_series": ("test_of_two_that_sample_at_once_one_stores_its_samples",),
    "test_service_settings": (),
    "test_sources": (
        "test_a_message_that_the_database_refuses_whole_is_kept_without_its_body[place0]",
        "test_a_source_has_one_holder",
        "test_long_headers_of_a_rejected_message_stop_nothing[x-other]",
        "test_processes_that_start_at_once_store_a_new_source_of_the_environment_once",
        "test_the_database_refuses_one_event_and_records_the_others",
        "test_what_an_operator_changes_ends_the_lease[pause]",
    ),
}


# What these show is decided by code of ours about any row, a file or a setting: on SQLite, and on PostgreSQL beside the
# others of their modules, which execute their statements.
NOT_ON_POSTGRESQL: Mapping[str, tuple[str, ...]] = {
    "test_failing": (
        "test_new_settings_and_a_resume_begin_the_count_again[resumed]",
        "test_one_object_that_fails_beside_others_that_arrive_makes_no_target_failing",
        "test_the_last_recorded_reason_is_shown",
        "test_what_stops_a_target_is_said_rather_than_that_it_fails",
    ),
    "test_lost_leases": (
        "test_after_a_late_write_a_mirror_holds_what_the_bucket_holds[delete]",
        "test_after_a_late_write_a_mirror_holds_what_the_bucket_holds[late version]",
        "test_after_a_late_write_a_mirror_holds_what_the_bucket_holds[put and get]",
        "test_after_a_late_write_a_mirror_holds_what_the_bucket_holds[version]",
    ),
    "test_openings": (
        "test_a_result_counts_only_for_the_settings_that_were_opened",
        "test_a_target_that_is_not_delivered_to_is_not_contacted",
        "test_a_target_that_was_offered_often_is_offered_at_once_with_new_settings[40]",
        "test_of_many_targets_some_are_offered_at_a_time",
    ),
    "test_record_budget": (
        "test_a_replay_is_bounded_in_bytes",
        "test_dead_letters_have_pages_of_bytes",
        "test_the_log_is_read_for_streams_in_rounds_of_bytes",
    ),
    "test_refusals": (
        "test_gone_for_everything_pauses_the_target[2]",
        "test_many_refused_objects_in_every_partition_hold_up_nobody",
        "test_no_second_opinion_is_asked_for_when_the_lease_is_to_end",
        "test_two_refused_objects_alone_in_one_partition_hold_up_nobody",
    ),
    "test_sources": (
        "test_a_setting_without_effect_is_a_warning_to_who_sets_keys_leniently",
        "test_bad_settings_change_nothing",
    ),
}


def is_moved(nodeid: str, database: str | None) -> bool:
    """Whether the night alone runs a test of the outbox on this database.

    What a test shows of the product it shows on PostgreSQL: on MySQL and MariaDB the statements are what counts. And on
    PostgreSQL, where nothing becomes of an event: it shows on SQLite what an operator reads. Where the text of a
    statement is MySQL's, MariaDB runs what shows something of locks, leases, errors, texts and times.
    """
    file, _, name = nodeid.partition("::")
    folder, _, module = file.removesuffix(".py").rpartition("/")
    if folder != FOLDER or database not in {"postgresql", "mysql", "mariadb"}:
        return False
    if database == "postgresql":
        if _is_one_of(NOT_ON_POSTGRESQL.get(module, ()), name):
            return True
        return module in ON_POSTGRESQL and not _is_one_of(COVER[module] + ON_POSTGRESQL[module], name)
    cover = ON_MARIADB if database == "mariadb" and module in ON_MARIADB else COVER
    return module in cover and not _is_one_of(cover[module], name)


def _is_one_of(entries: Collection[str], name: str) -> bool:
    """Whether a test, with its parameters, is one of these: `test_a[b]` is the test with the parameter `b` alone."""
    test, _, given = name.removesuffix("]").partition("[")
    for entry in entries:
        wanted, _, parameter = entry.removesuffix("]").partition("[")
        if wanted == test and (not parameter or f"-{parameter}-" in f"-{given}-"):
            return True
    return False
