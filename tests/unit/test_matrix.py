"""What `make matrix` runs: that there are such tests, and what becomes of unpacked packages."""

from __future__ import annotations

from pathlib import Path

from tests import matrix, services
from tests.support import debian_tree

ROOT = Path(__file__).parents[2]


def test_every_file_that_it_names_is_there() -> None:
    named = [word for part in (matrix.CONTRACT, matrix.DATABASES, matrix.BROKERS) for word in part if "/" in word]
    assert named
    assert [word for word in named if not (ROOT / word).is_file()] == []


def test_every_word_that_chooses_of_the_contract_suite_is_in_it() -> None:
    suite = (ROOT / matrix.CONTRACT[0]).read_text() + (ROOT / "tests/contract/probes/__init__.py").read_text()
    words = f"{matrix.TARGETS} or {matrix.ASKED}".split(" or ")
    assert [word for word in words if word not in suite] == []


def test_a_server_that_has_no_newer_version_is_the_usual_one() -> None:
    assert services.Nats.newest
    assert services.NatsStreaming.newest is None
    assert services.OldMySQL.newest is None


def test_a_configuration_that_a_program_refers_to_comes_along(tmp_path: Path) -> None:
    (tmp_path / "etc/erlang").mkdir(parents=True)
    (tmp_path / "etc/erlang/vm.args").write_text("+K true")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/lib").mkdir()
    (tmp_path / "usr/lib/configuration").symlink_to("/etc/erlang")
    (tmp_path / "usr/lib/nothing").symlink_to("/etc/nothing")
    debian_tree.finish(tmp_path)
    assert (tmp_path / "usr/lib/configuration/vm.args").read_text() == "+K true"
    assert not (tmp_path / "usr/lib/configuration").is_symlink()
    assert (tmp_path / "usr/lib/nothing").is_symlink()


def test_a_program_of_a_tree_runs_as_the_user_that_is_asked_for(tmp_path: Path) -> None:
    command = debian_tree.within(tmp_path, ["initdb", "-D", "data"], "postgres")
    assert command[-3:] == ["initdb", "-D", "data"]
    assert "--reuid=postgres" in command
    assert "setpriv" not in debian_tree.within(tmp_path, ["initdb"])
