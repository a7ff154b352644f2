"""What the contract suite asks of MySQL in full, MariaDB is asked in its essentials."""

from __future__ import annotations

from tests.contract.probes import fixtures
from tests.contract.probes.mysql import MariaNamespace
from tests.contract.test_target_contract import (  # noqa: F401 (collected here once more, with the probe below)
    test_a_batch_with_one_poison_event_rejects_that_one_alone,
    test_a_closed_port_is_unavailable_within_the_time_limit,
    test_a_frozen_server_cannot_hang_an_opening_either,
    test_a_killed_server_is_unavailable_and_gets_everything_when_it_is_back,
    test_a_poison_event_holds_up_nothing_of_its_own_object,
    test_a_wrong_certificate_is_refused,
    test_a_wrong_password_is_unavailable_within_the_time_limit_and_not_told,
    test_delivering_twice_leaves_a_namespace_unchanged,
    test_no_thread_socket_or_file_is_left_after_close,
    test_odd_keys_survive,
    test_opens_what_it_created_before,
    test_the_exact_body_arrives_of_all_that_a_real_minio_sent,
    test_the_right_certificate_is_accepted,
)

running = fixtures.running(MariaNamespace)
