"""Post events to the API in batches, rate-limited, and retry until each batch is recorded."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.cli_common.api_session import ApiSession, ApiUnavailable, InvalidToken, InvalidUrl, is_success
from app.config.arn import TargetId
from app.listings.limits import RepairLimits
from app.quantities import count_noun
from app.resources.reconciliation import DRIFT_KINDS
from spark_jobs.jobs.repair_events import is_removal, repair_event, request_body

BATCH_SIZE = 500
_REFUSED = (400, 413, 422)  # statuses that are about the events
_T = TypeVar("_T")
_RETRY_TIMEOUT = 12.0  # seconds that the API may be unavailable
_QUEUE_FULL_TIMEOUT = 600.0  # seconds that a queue may stay full
_RETRY_INTERVAL = 2.0  # seconds


class NotPosted(Exception):
    """The API did not accept the events; the message says why. Earlier batches stay recorded."""


class _QueueFull(Exception):
    """The target has no room for the whole request; nothing of it was recorded."""


class _Refused(Exception):
    """The API refuses the request for one of its events or more; nothing of it was recorded."""


def repairable(findings: DataFrame) -> DataFrame:
    """Return the findings that are drift and not in flight."""
    return findings.where(F.col("kind").isin(*DRIFT_KINDS) & ~F.col("in_flight"))


@dataclass(frozen=True)
class Api:
    """The service's API and a token: of scope admin for events to one target, of scope ingest for others."""

    url: str
    token: str = ""

    @contextmanager
    def to_target(
        self, target: TargetId, *, after: int, rate: float, timeout: float = _RETRY_TIMEOUT
    ) -> Iterator["EventSender"]:
        """Send events to one target only; the API leaves out those whose object changed after seq `after` of the log.

        `timeout` is how long (s) the API may be unavailable, `rate` is events per second.
        """
        path = f"/v1/targets/{target.type}/{target.name}/events"
        with self._session() as session:
            yield EventSender(session, path, {"after": after}, rate, timeout)

    @contextmanager
    def to_matching_targets(self, *, rate: float, timeout: float = _RETRY_TIMEOUT) -> Iterator["EventSender"]:
        """Send events to the targets that the rules name."""
        with self._session() as session:
            yield EventSender(session, "/v1/events", {}, rate, timeout)

    def check_repairs(self, target: TargetId) -> None:
        """Raise `NotPosted` if the API would take no repair of the target, such as by this token."""
        with self.to_target(target, after=0, rate=math.inf) as sender:
            sender.send([])

    def post_repairs(
        self, findings: DataFrame, *, bucket: str, target: TargetId, after: int, listed_at: int, limits: RepairLimits,
        problem: Callable[[], str], newest_sequencers: Callable[[Sequence[str]], Mapping[str, str]],
        existing: Callable[[Sequence[str]], Collection[str]],
    ) -> tuple[int, str]:  # fmt: skip
        """Post the repairs of the findings, up to the limit; return how many are recorded, and why others are not.

        Repairs of objects that changed after `after` are not recorded, nor is any after `problem` has said why. No row
        is removed whose key `existing` returns. Raises `NotPosted`.
        """
        recorded, kept, problems = 0, 0, []
        with self.to_target(target, after=after, rate=limits.rate) as sender:
            for batch in batches(findings.limit(limits.max_repairs).toLocalIterator(), BATCH_SIZE):
                if found := problem():
                    problems.append(found)
                    break
                found_rows = [row.asDict() for row in batch]
                there = existing([row["key"] for row in found_rows if is_removal(row)])
                rows = [row for row in found_rows if not (is_removal(row) and row["key"] in there)]
                kept += len(found_rows) - len(rows)
                if not rows:
                    continue
                sequencers = newest_sequencers([row["key"] for row in rows])
                receipt = sender.send(
                    [repair_event(row, bucket, target, sequencers.get(row["key"], ""), listed_at) for row in rows]
                )
                recorded += receipt["recorded"] + receipt["repeated"]
            if sender.refused:
                problems.append(f"{count_noun(sender.refused, 'repair')} could not be recorded: {sender.reason}.")
        if kept:
            problems.append(
                f"{count_noun(kept, 'row')} stayed: the storage has the objects when it is asked for each, and its "
                "listing has not."
            )
        return recorded, " ".join(problems)

    @contextmanager
    def _session(self) -> Iterator[ApiSession]:
        try:
            session = ApiSession(self.url, self.token)
        except (InvalidToken, InvalidUrl) as error:
            raise NotPosted(str(error)) from None
        with closing(session):
            yield session


class EventSender:
    """Send batches of events over one connection; each is retried until its outcome is known.

    `refused` is how many events the API has refused by themselves, and `reason` why the last of these.
    """

    def __init__(self, session: ApiSession, path: str, params: Mapping[str, int], rate: float, timeout: float) -> None:
        self._session, self._path, self._params = session, path, params
        self._rate, self._timeout = rate, timeout
        self._next_send = time.monotonic()
        self.refused, self.reason = 0, ""

    def send(self, records: Sequence[Mapping[str, Any]]) -> Counter[str]:
        """Send the records; return the API's receipt: how many were `recorded`, `repeated`, `overtaken`, and so on.

        If the queue has no room for all of them they are sent again in smaller requests, until it has had room for
        each. So they are if the API refuses one of them, which is left out then. Raises `NotPosted`; sending the same
        records again is idempotent.
        """
        time.sleep(max(0.0, self._next_send - time.monotonic()))
        self._next_send = time.monotonic() + len(records) / self._rate
        receipt, unsent, last_success = Counter[str](), [records], time.monotonic()
        while unsent:
            part = unsent.pop()
            try:
                receipt += _totals(self._post(part))
            except (_QueueFull, _Refused) as error:
                half = len(part) // 2
                if half:
                    unsent += [part[half:], part[:half]]
                    continue
                if isinstance(error, _Refused):
                    self.refused, self.reason = self.refused + 1, str(error)
                    continue
                if time.monotonic() - last_success > _QUEUE_FULL_TIMEOUT:
                    raise NotPosted(
                        f"the target's queue has been full for {_QUEUE_FULL_TIMEOUT / 60:g} minutes: {error}"
                    ) from None
                unsent.append(part)
                time.sleep(_RETRY_INTERVAL / 4)
            else:
                last_success = time.monotonic()
        return receipt

    def _post(self, records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        content, headers = orjson.dumps(request_body(records)), {"Content-Type": "application/json"}
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                response = self._session.request("POST", self._path, params=self._params, data=content, headers=headers)
            except ApiUnavailable as error:
                reason = str(error)
            else:
                if is_success(response):
                    receipt: Mapping[str, Any] = response.json()
                    return receipt
                reason = f"{self._session.shown_url} answered {response.status_code}: {response.text[:500]}"
                if response.status_code in _REFUSED and records:
                    raise _Refused(reason)
                if response.status_code < 500:
                    raise NotPosted(reason)
                if ":queue-full" in response.text:
                    raise _QueueFull(reason)
            if time.monotonic() > deadline:
                raise NotPosted(reason)
            time.sleep(_RETRY_INTERVAL)


def _totals(receipt: Mapping[str, Any]) -> Counter[str]:
    """Return the receipt's numbers; of numbers per target the sum."""
    return Counter({name: sum(value.values()) if isinstance(value, dict) else value for name, value in receipt.items()})


def batches(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield the items in lists of `size`; the last one may be shorter."""
    batch: list[_T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
