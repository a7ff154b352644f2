"""What counts as one statement where those of two tests are compared."""

from __future__ import annotations

import pytest

from tests.support.executed_statements import without_values


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT a FROM t WHERE b = 1", "SELECT a  FROM t\n WHERE b = 23"),
        ("SELECT a FROM t WHERE b = 1", "SELECT a FROM t WHERE b = -1"),
        ("SELECT a FROM t WHERE b = 'x'", "SELECT a FROM t WHERE b = 'it''s (\\'y\\')'"),
        ("SELECT a FROM t WHERE b IN (%s)", "SELECT a FROM t WHERE b IN (%s, %s, %s)"),
        ("INSERT INTO t VALUES (%(a)s)", "INSERT INTO t VALUES (%(a)s, %(b)s), (%(c)s, %(d)s)"),
        ("SELECT a FROM t WHERE b = 1 AND c IN (2)", "SELECT a FROM t WHERE b = 1 AND c IN (2) OR b = 3 AND c IN (4)"),
        ("(SELECT a FROM t WHERE b = 1)", "(SELECT a FROM t WHERE b = 1) UNION ALL (SELECT a FROM t WHERE b = 2)"),
        ("SELECT CASE a WHEN 1 THEN 2 END", "SELECT CASE a WHEN 1 THEN 2 WHEN 3 THEN 4 WHEN 5 THEN 6 END"),
        ("SAVEPOINT sa_savepoint_1", "SAVEPOINT sa_savepoint_2"),
    ],
)
def test_statements_with_other_values_are_one(one: str, other: str) -> None:
    assert without_values(one) == without_values(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT a FROM t WHERE b = 1", "SELECT a FROM t WHERE c = 1"),
        ("SELECT a FROM t WHERE b = 1", "SELECT a FROM t WHERE b = 1 FOR UPDATE"),
        ("SELECT a FROM t WHERE b = 1", "SELECT a FROM t WHERE b = 1 AND c = 1"),
        ("SELECT a FROM t WHERE b = 1 OR b = 2", "SELECT a FROM t WHERE b = 1 AND b = 2"),
        ("SELECT a FROM t", "SELECT a, b FROM t"),
    ],
)
def test_other_statements_are_others(one: str, other: str) -> None:
    assert without_values(one) != without_values(other)
