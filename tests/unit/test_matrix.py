"""What `make matrix` runs: that there are such tests, and what becomes of unpacked packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import matrix, provision, services
from tests.contract.probes.registry import PROBES
from tests.support import assemble_elasticsearch, debian_tree, interpreters

ROOT = Path(__file__).parents[2]


def test_every_file_that_it_names_is_there() -> None:
    named = [word for part in (*matrix.ON_SERVERS, *matrix.ON_PYTHONS) for word in part if "/" in word]
    assert named
    assert [word for word in named if not (ROOT / word).exists()] == []


def test_every_word_that_chooses_of_the_contract_suite_is_in_it() -> None:
    suite = (ROOT / matrix.CONTRACT[0]).read_text()
    words = f"{matrix.TARGETS} or {matrix.ASKED}".split(" or ")
    assert [word for word in words if word not in suite and not any(word in name for name in PROBES)] == []


def test_a_server_that_has_no_newer_version_is_the_usual_one() -> None:
    assert services.Nats.newest
    assert services.Elasticsearch.newest
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


@pytest.mark.parametrize("source", assemble_elasticsearch.ADAPTED)
def test_a_launcher_is_the_source_itself_until_its_server_changed_something(source: str) -> None:
    text = (assemble_elasticsearch.SOURCES / source).read_text()
    since, changes = assemble_elasticsearch.ADAPTED[source]
    assert assemble_elasticsearch.adapted(source, f"{since - 1}.99.1") == text
    newer = assemble_elasticsearch.adapted(source, f"{since}.0.0")
    assert [before for before in changes if before not in text] == []
    assert [now for now in changes.values() if now not in newer] == []


def test_a_python_of_another_version_is_not_taken() -> None:
    here = ".".join(map(str, sys.version_info[:2]))
    assert interpreters.works(sys.executable, here)
    assert not interpreters.works(sys.executable, "3.9")


def test_a_python_that_nobody_has_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(provision.CannotProvideError, match=r"no Python 3\.9 on PATH or in pyenv"):
        interpreters.interpreter("3.9")


def test_a_part_that_there_is_not_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert matrix.main(["3.9"]) == 2
    assert "no such part: 3.9; there are servers, 3.12, 3.13, 3.14" in capsys.readouterr().err
