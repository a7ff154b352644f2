"""Times of filters mean the same in commands and in the API."""

from __future__ import annotations

import click
import pytest

from app.cli_common.param_types import TIME
from app.config.errors import BadValue
from app.config.fields.times import parse_time
from app.resources import declaration

NOW = 1_800_000_000.0
AT = 1_763_685_236_000  # 2025-11-21T00:33:56Z


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ("2025-11-21T00:33:56Z", AT),
        ("2025-11-21T00:33:56.000", AT),
        ("2025-11-21T01:33:56+01:00", AT),
        ("2025-11-21", 1_763_683_200_000),
        ("20251121", 1_763_683_200_000),
        (str(AT), AT),
        (AT, AT),
        ("2h", 1_799_992_800_000),
        ("1h30m", 1_799_994_600_000),
        ("7d", 1_799_395_200_000),
        ("0s", 1_800_000_000_000),
    ],
)
def test_each_way_to_write_a_time(written: object, at: int) -> None:
    assert parse_time(written, NOW) == at


@pytest.mark.parametrize(
    "written", ["", "soon", "2x", "-2h", "9" * 30, "9" * 5000, "1e400h", "20259999", "2h ", True, 1.5, None]
)
def test_what_is_no_time_is_refused(written: object) -> None:
    with pytest.raises(BadValue, match="is not a time"):
        parse_time(written, NOW)


@pytest.mark.parametrize("written", ["2025-11-21T00:33:56Z", "2025-11-21", str(AT)])
def test_a_command_and_the_api_take_the_same(written: str) -> None:
    assert TIME.convert(written, None, None) == declaration.TIME.read("since", written)


def test_a_command_and_the_api_refuse_the_same_in_the_same_words() -> None:
    with pytest.raises(declaration.BadMember) as by_api:
        declaration.TIME.read("since", "soon")
    with pytest.raises(click.BadParameter, match="is not a time") as by_command:
        TIME.convert("soon", None, None)
    assert by_api.value.hint in by_command.value.message
