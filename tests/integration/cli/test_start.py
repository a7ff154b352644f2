"""What `bucketwire up` does to an outbox before anything runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config.fields.addresses import HostPort
from app.config.settings import Settings
from app.outbox.engine.database import Database
from app.supervisor.start import SAMPLE, CannotStart, add_sample, check_address, lock_folder, remembered_port
from tests import services
from tests.support.builders import add_target, migrated, registry


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = migrated(f"sqlite:///{tmp_path}/outbox.db")
    yield opened
    opened.close()


def settings(folder: str, **more: str) -> Settings:
    return Settings.from_environ({"BUCKETWIRE_DATA_DIR": folder, **more})


def test_the_sample_is_made_once_gets_everything_and_moves_with_its_folder(database: Database) -> None:
    targets = registry(database)
    assert add_sample(targets, settings("/srv/one"))
    [stored] = targets.targets()
    assert (stored.target, stored.origin, stored.values["address"]) == (SAMPLE, "sample", "/srv/one/redis.sock")
    [rule] = targets.rules()
    assert (rule.rule.bucket, rule.rule.events) == ("*", ("*",))

    assert add_sample(targets, settings("/srv/two"))
    [moved] = targets.targets()
    assert moved.values["address"] == "/srv/two/redis.sock"
    assert len(targets.rules()) == 1


def test_there_is_no_sample_where_something_is_configured_or_the_broker_is_another(database: Database) -> None:
    assert not add_sample(registry(database), settings("/srv", BUCKETWIRE_BROKER_URL="redis://127.0.0.1:6379/0"))
    assert registry(database).targets() == []
    add_target(database, "mine")
    assert not add_sample(registry(database), settings("/srv"))
    assert [str(stored.target) for stored in registry(database).targets()] == ["webhook:mine"]


def test_a_sample_that_was_removed_does_not_come_back_while_anything_else_is_there(database: Database) -> None:
    add_sample(registry(database), settings("/srv"))
    add_target(database, "mine")
    registry(database).remove(SAMPLE, force=True)
    assert not add_sample(registry(database), settings("/srv"))


def test_a_port_is_kept_unless_something_took_it(tmp_path: Path) -> None:
    path = tmp_path / "flower.port"
    first = services.free_port()
    path.write_text(f"{first}\n")
    assert remembered_port(path) == first
    with services.receiver() as other:
        path.write_text(f"{other.port}\n")
        second = remembered_port(path)
    assert second != other.port
    assert path.read_text() == f"{second}\n"
    path.write_text("not a number")
    assert remembered_port(path) > 0


def test_a_folder_has_one_service_at_a_time(tmp_path: Path) -> None:
    first = lock_folder(tmp_path)
    with pytest.raises(CannotStart, match="BUCKETWIRE_DATA_DIR"):
        lock_folder(tmp_path)
    os.close(first)
    os.close(lock_folder(tmp_path))


def test_a_taken_ipv6_address_is_named_with_brackets_and_so_is_a_free_one() -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            CannotStart, match=rf"\[::1\]:{port} is already in use .*; BUCKETWIRE_LISTEN=\[::1\]:\d+ is free"
        ):
            check_address(HostPort("::1", port))
