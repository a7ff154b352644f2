"""A reconciliation of a target that a limited token may set."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from app.config.arn import TargetId
from app.outbox.tokens import Tokens
from spark_jobs.api_client import Api
from spark_jobs.jobs.reconcile import ReconcileConfig, run
from spark_jobs.stores import CannotRead
from tests.support.builders import migrated, registry

LINK_LOCAL = {
    "redis": {"address": "169.254.1.1:9", "key": "k"},
    "mysql": {"dsn_string": "u:p@tcp(169.254.1.1:9)/d", "table": "t"},
    "postgresql": {"connection_string": "host=db hostaddr=169.254.1.1 user=u dbname=d", "table": "t"},
    "elasticsearch": {"url": "http://[fe80::1]:9,http://b:9", "index": "i"},
}


class Opened(Exception):
    """The run went on to open a session."""


@pytest.mark.parametrize("kind", LINK_LOCAL)
@pytest.mark.parametrize("is_limited", [True, False])
def test_a_run_reaches_no_link_local_address_for_a_limited_token(tmp_path: Path, kind: str, is_limited: bool) -> None:
    def open_session() -> None:
        raise Opened

    with closing(migrated(f"sqlite:///{tmp_path}/outbox.db")) as database:
        registry(database).put(target := TargetId(kind, "own"), LINK_LOCAL[kind] | {"format": "namespace"})
        Tokens(database).create("team", ["admin"], targets=[target] if is_limited else [])
        config = ReconcileConfig(bucket="images", target=target, reports=str(tmp_path))
        with pytest.raises(CannotRead if is_limited else Opened, match="is link-local" if is_limited else None):
            run(open_session, database, registry(database), config, Api("http://127.0.0.1:9", ""))  # type: ignore[arg-type]  # as above
