"""pytest compiles the tests once, and not again where nothing has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests.support.bytecode import stale


def test_what_pytest_has_compiled_is_stale_as_soon_as_the_source_is_another(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    source = tmp_path / "test_one.py"
    source.write_text("def test_one() -> None:\n    assert True\n")
    assert stale(tmp_path) == [source]
    digest, code = rewrite._rewrite_test(source, pytestconfig)
    compiled = tmp_path / "__pycache__" / f"test_one{rewrite.PYC_TAIL}"
    compiled.parent.mkdir()
    state = pytestconfig.stash[rewrite.assertstate_key]
    assert rewrite._write_pyc(state, code, digest, compiled)
    assert stale(tmp_path) == []
    source.write_text(source.read_text() + "\n")
    assert stale(tmp_path) == [source]
