"""What `make check` leaves out: tests that need a server which pip does not bring, and modules that cost seconds."""

from __future__ import annotations

import pytest

_DATABASES = {"postgresql", "mysql", "mariadb"}
_FIXTURES = {"postgres_database"}  # beside those whose names end with _server
_OUTBOX, _API, _CLI = (f"tests/integration/{room}/test" for room in ("outbox", "api", "cli"))
# Each takes more than two seconds of processor time, in processes of its own or because of how much it tries.
DEAR = frozenset(
    {
        f"{_OUTBOX}_frontend_order.py",
        f"{_OUTBOX}_object_versions.py",
        f"{_OUTBOX}_query_cost.py",
        f"{_OUTBOX}_record_budget.py",
        f"{_OUTBOX}_refusals.py",
        f"{_OUTBOX}_series.py",
        f"{_API}_connections.py",
        f"{_API}_drift_kinds.py",
        f"{_API}_large_events.py",
        f"{_API}_listen.py",
        f"{_API}_openapi.py",
        f"{_API}_spool.py",
        f"{_CLI}_clients.py",
        f"{_CLI}_guides.py",
        f"{_CLI}_local_api.py",
        f"{_CLI}_problems.py",
        f"{_CLI}_processes.py",
        f"{_CLI}_rules.py",
        f"{_CLI}_up.py",
        f"{_CLI}_watch.py",
        "tests/unit/api/test_admin_encryption.py",
        "tests/unit/workers/test_reconcile_jobs.py",
    }
)


def is_left_out(item: pytest.Item) -> bool:
    """Whether a server is started before this test begins. One that starts its own is skipped."""
    names = set(getattr(item, "fixturenames", ()))
    parameters = getattr(item, "callspec", None)
    values = parameters.params.values() if parameters else ()
    return bool(
        names & _FIXTURES
        or any(name.endswith("_server") for name in names)
        or any(value in _DATABASES for value in values if isinstance(value, str))
    )
