"""On which databases `make test` runs a test of the outbox: a marker at its module, the test or a parameter of it.

The closest one counts. A test without one runs on all four, as those of locks, leases, times, texts, limits, errors and
costs do. At night each test runs on each database.

What a test shows of the product it shows on PostgreSQL; of MySQL and MariaDB the statements are what counts. So many
tests are of three or all that each statement that any test executes on MySQL is executed there, and on MariaDB if its
text is not MySQL's but for the quotes around names: test_statement_cover.py proves it and says what is missing.
"""

from __future__ import annotations

import pytest

FOLDER = "tests/integration/outbox"

# SQLite: what operators read and set, which becomes nothing of an event, and what code of ours decides about any row,
# file or setting, by statements that other tests execute on PostgreSQL.
ONE = pytest.mark.databases("sqlite")
# And PostgreSQL: behaviour; and of modules of ONE where several connections meet, for its errors and costs.
TWO = pytest.mark.databases("sqlite", "postgresql")
# And MySQL: the statements.
THREE = pytest.mark.databases("sqlite", "postgresql", "mysql")
# And MariaDB: locks, leases, errors, texts and times, in modules of other tests.
ALL = pytest.mark.databases("sqlite", "postgresql", "mysql", "mariadb")
