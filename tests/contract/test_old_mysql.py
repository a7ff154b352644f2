"""The MySQL of MinIO's guides, 5.7: what the contract suite asks of MySQL 8 in full, it is asked in its essentials."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests import services
from tests.contract.probes import fixtures
from tests.contract.probes.base import attempt
from tests.contract.probes.mysql import Access, Namespace
from tests.contract.test_target_contract import (  # noqa: F401 (collected here once more, with the probe below)
    test_a_batch_with_one_poison_event_rejects_that_one_alone,
    test_a_killed_server_is_unavailable_and_gets_everything_when_it_is_back,
    test_delivering_twice_leaves_a_namespace_unchanged,
    test_odd_keys_survive,
    test_opens_what_it_created_before,
    test_the_exact_body_arrives_of_all_that_a_real_minio_sent,
)
from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED

pytestmark = pytest.mark.nightly("MySQL 8 and MariaDB")


class OldNamespace(Namespace):
    """A row for each object, in MySQL 5.7."""

    make = services.OldMySQL


running = fixtures.running(OldNamespace)
mirror = fixtures.renewed()


def test_it_is_the_line_that_the_guides_name(mirror: OldNamespace) -> None:
    [(version,)] = mirror.ask("SELECT version()")
    assert version.startswith("5.7.")


def test_objects_and_versions_are_removed(mirror: OldNamespace) -> None:
    with closing(mirror.target()) as target:
        versioned = sample_events.put("kept", version="v2")
        batch = [sample_events.put("gone"), sample_events.put("old", version="v1"), versioned]
        removals = [sample_events.delete("gone"), sample_events.delete_version("old", "v1")]
        removals.append(sample_events.delete_version("kept", "v1"))
        for events in (batch, removals):
            assert set(attempt(target, events, 100)) == {DELIVERED}
    assert [key for key, _ in mirror.held()] == [versioned.path]


def test_an_event_is_a_row_with_its_time(mirror: OldNamespace) -> None:
    journal = Access(mirror.server)
    with closing(journal.target()) as target:
        batch = [sample_events.put("a"), sample_events.put("b"), sample_events.delete("a")]
        assert attempt(target, batch, 1) == [DELIVERED] * 3
    assert [path for path, _ in journal.held()] == [event.path for event in batch]
