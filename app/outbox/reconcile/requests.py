"""Start and cancel reconciliations by request. A requested run waits, as a scheduled one does, for a Spark worker."""

from uuid import uuid4

import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.errors import BadValue
from app.config.targets.base import NamespaceSettings
from app.events.buckets import is_bucket_name
from app.outbox import audit, log_head, processes, tables
from app.outbox.column_values import NEVER
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.locks import repeated_after_deadlock
from app.outbox.errors import AlreadyRunning, NothingToRepair, UnknownRun, UnseenBucket
from app.outbox.reconcile.runs import (
    BACKFILLING,
    CANCELLED,
    DRIFT,
    INCREMENTAL,
    RECONCILE,
    RUNNING,
    UNFINISHED,
    WAITING,
    Reconciliation,
    Reconciliations,
    check_prefix,
)
from app.outbox.registry import Registry

_MAX_COMPARED = 1_000  # names with which an unknown one is compared
CANCELLED_BY_REQUEST = "cancelled on request"
_CANCELLED_STATE = {WAITING: CANCELLED, RUNNING: CANCELLED, BACKFILLING: UNFINISHED}


class RunRequests:
    """Requests for runs of reconciliations."""

    def __init__(self, database: Database, registry: Registry) -> None:
        self._database = database
        self._registry = registry
        self._runs = Reconciliations(database)

    def start(
        self,
        target: TargetId,
        bucket: str,
        *,
        repair: bool,
        prefix: str = "",
        incremental: bool = False,
        unknown_bucket: bool = False,
    ) -> Reconciliation:
        """Register a run that starts when a Spark worker is free; with `repair` it repairs the drift that it finds.

        With `prefix` it compares the keys below it only, with `incremental` those that the log names since the last.

        Raises `AlreadyRunning` if one waits or runs, `UnknownTarget`, `BadSettings`, `BadValue` if the target has
        nothing to compare, no bucket can have this name, or both parts are asked for, and `UnseenBucket` without
        `unknown_bucket` for a bucket that nothing has named: its rows would all be orphaned, or there are none.
        """
        settings = self._registry.settings(self._registry.target(target))
        if not isinstance(settings, NamespaceSettings) or settings.format != "namespace":
            raise BadValue(f"{target} has no rows to compare", "name a target with format=namespace")
        if not is_bucket_name(bucket):
            raise BadValue(f"{bucket[:300]!r} is not the name of a bucket", "name a bucket that the target mirrors")
        try:
            check_prefix(prefix)
        except BadValue as error:
            raise BadValue(f"the prefix {error.problem}", error.hint) from None
        if prefix and incremental:
            raise BadValue("an incremental run has no prefix", "give one of them")
        if not unknown_bucket:
            self._check_known(bucket)
        return self._register(target, bucket, {"repair": repair}, prefix, INCREMENTAL if incremental else RECONCILE)

    def _check_known(self, bucket: str) -> None:
        """Raise `UnseenBucket` unless something has named the bucket."""
        seen = tables.buckets.c.name
        names = (seen, tables.rules.c.bucket, tables.bucket_settings.c.name, tables.reconciliations.c.bucket)
        with self._database.reading() as connection:
            known = sa.or_(*(sa.exists().where(name == bucket) for name in names))
            if not connection.execute(sa.select(known)).scalar_one():
                raise UnseenBucket(bucket, connection.execute(sa.select(seen).limit(_MAX_COMPARED)).scalars().all())

    def repair(self, run: str) -> Reconciliation:
        """Register a run that compares again what a run compared, and repairs the drift that there is then.

        Raises `UnknownRun`, `NothingToRepair`, and what `start` raises.
        """
        ended = self._runs.get(run)
        if ended.state != DRIFT or ended.job not in (RECONCILE, INCREMENTAL):
            raise NothingToRepair(f"the run {run} is {ended.state}: only a reconciliation that found drift is repaired")
        self._registry.settings(self._registry.target(ended.target))
        details = {"repair": True, "approved": run}
        return self._register(ended.target, ended.bucket, details, ended.prefix, ended.job)

    @repeated_after_deadlock
    def cancel(self, run: str) -> Reconciliation:
        """Cancel a run that waits or runs; its process ends within about 15 s. Others stay as they are.

        Raises `UnknownRun`.
        """
        r = tables.reconciliations.c
        with self._database.writing() as connection:
            state = connection.execute(sa.select(r.state).where(r.run == run).with_for_update()).scalar_one_or_none()
            if state is None:
                raise UnknownRun(run)
            if state in _CANCELLED_STATE:
                values = {"state": _CANCELLED_STATE[state], "problem": CANCELLED_BY_REQUEST, "alive_until": 0}
                here = tables.reconciliations.update().where(r.run == run)
                connection.execute(here.values(finished_at=database_now(connection), **values))
                audit.record(connection, "reconciliation.cancel", f"reconciliation:{run}")
        return self._runs.get(run)

    @repeated_after_deadlock
    def _register(
        self, target: TargetId, bucket: str, details: dict[str, object], prefix: str, job: str
    ) -> Reconciliation:
        r = tables.reconciliations.c
        run = uuid4().hex
        with self._database.writing() as connection:
            log_head.lock(connection)  # if two are requested at once, the second one sees the first
            now = database_now(connection)
            same = (r.type == target.type, r.name == target.name, r.bucket == bucket)
            is_comparison = r.job.in_((RECONCILE, INCREMENTAL))
            active = sa.select(r.state).where(*same, is_comparison, r.finished_at == 0, r.alive_until > now).limit(1)
            state = connection.execute(active).scalar_one_or_none()
            if state is not None:
                idle = state == WAITING and not processes.has_spark_worker(connection, now)
                cure = "start a Spark worker, as none is there, or cancel it" if idle else "cancel it first, or wait"
                raise AlreadyRunning(f"a run of {target} with {bucket} is {state} already; {cure}")
            connection.execute(
                tables.reconciliations.insert().values(
                    run=run, type=target.type, name=target.name, bucket=bucket, state=WAITING, started_at=now,
                    alive_until=NEVER, finished_at=0, report="", problem="",
                    repair="yes" if details["repair"] else "no", prefix=prefix, job=job,
                )
            )  # fmt: skip
            facts = {"target": str(target), "bucket": bucket, **({"prefix": prefix} if prefix else {}), **details}
            facts |= {"incremental": True} if job == INCREMENTAL else {}
            audit.record(connection, "reconciliation.start", f"reconciliation:{run}", facts)
        return self._runs.get(run)
