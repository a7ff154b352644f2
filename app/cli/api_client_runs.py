"""The client of a remote service's reconciliations."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from app.cli.api_client import ApiClient
from app.cli_common.param_types import milliseconds
from app.config.arn import TargetId, parse_arn
from app.outbox.reconcile.findings import Finding
from app.outbox.reconcile.runs import COUNTS, Reconciliation

_PAGE = 1000  # the API's largest page


class RemoteReconciliations:
    """`Reconciliations` and requests for them at a remote service.

    Every method raises `CommandError` with the service's message.
    """

    def __init__(self, remote: ApiClient) -> None:
        self._remote = remote

    def list(self, *, limit: int = 100) -> Sequence[Reconciliation]:
        """Return the last runs, newest first."""
        body = self._remote.request("GET", "/v1/reconciliations", params={"limit": limit})
        return [_run(run) for run in body["reconciliations"]]

    def start(self, target: TargetId, bucket: str, *, repair: bool) -> Reconciliation:
        """Register a run. Raises `UnknownTarget`."""
        body = {"target": str(target), "bucket": bucket, "repair": repair}
        return _run(self._remote.request("POST", "/v1/reconciliations", target=target, json=body))

    def repair(self, run: str) -> Reconciliation:
        """Register a run that repairs the drift that a run found."""
        return _run(self._remote.request("POST", f"{_path(run)}/repair", json={}))

    def cancel(self, run: str) -> Reconciliation:
        """Cancel a run."""
        return _run(self._remote.request("POST", f"{_path(run)}/cancel", json={}))

    def findings(self, run: str, *, kind: str = "", limit: int = 100) -> Sequence[Finding]:
        """Return the first findings of a run; requests page by page."""
        found: list[Finding] = []
        after: int | None = 0
        while after is not None and len(found) < limit:
            params = {"kind": kind, "limit": min(_PAGE, limit - len(found)), "after": after}
            body = self._remote.request("GET", f"{_path(run)}/findings", params=params)
            found += [Finding(one.pop("number"), one["kind"], one) for one in body["findings"]]
            after = body["next"]
        return found


def _path(run: str) -> str:
    return f"/v1/reconciliations/{quote(run, safe='')}"


def _run(body: dict[str, Any]) -> Reconciliation:
    return Reconciliation(
        body["run"],
        parse_arn(body["target"])[1],
        body["bucket"],
        body["job"],
        body["state"],
        milliseconds(body["started_at"]),
        milliseconds(body["finished_at"]),
        {name: body[name] for name in COUNTS},
        body["report"],
        body["problem"],
        body["repair"],
    )
