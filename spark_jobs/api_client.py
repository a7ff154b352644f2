"""Events on their way in: through the API, in portions, no faster than is asked for, and none lost to a full queue."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import orjson
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.config.arn import TargetId
from spark_jobs.jobs.drift import DRIFT
from spark_jobs.jobs.repair_events import body, record

PORTION = 500
_T = TypeVar("_T")
_PATIENCE = 12.0  # seconds that an API may be away
_FULL = 600.0  # seconds that a queue may stay full
_PAUSE = 2.0  # seconds between two tries


class NotPosted(Exception):
    """The API did not take the events; the message says why. What was posted before stays."""


class _QueueFull(Exception):
    """The target has no room for all of a request, of which nothing was recorded."""


@dataclass(frozen=True, slots=True)
class RepairLimits:
    """What keeps a mad reconciliation from doing harm."""

    most: int = 100_000  # repairs in one run
    removals: float = 10.0  # per cent of the target's rows that may go
    few: int = 10  # removals that are always allowed
    rate: float = 1000.0  # events a second

    def too_many(self, removals: int, held: int) -> bool:
        """Whether so many of the rows may not go."""
        return removals > max(self.few, held * self.removals / 100)


def repairable(findings: DataFrame, *, removals: bool) -> DataFrame:
    """The findings that are drift and not in flight; without `removals` those whose object is there."""
    wanted = F.col("kind").isin(*DRIFT) & ~F.col("in_flight")
    return findings.where(wanted if removals else wanted & F.col("modified").isNotNull())


@dataclass(frozen=True)
class Api:
    """The service's API, asked with a token: of scope admin for events to one target, else of scope ingest."""

    url: str
    token: str = ""

    @contextmanager
    def to_target(
        self, target: TargetId, *, after: int, rate: float, patience: float = _PATIENCE
    ) -> Iterator["Sender"]:
        """Events for one target alone, each unless its object changed after number `after` of the log."""
        path = f"/v1/targets/{target.type}/{target.name}/events"
        with self._client() as client:
            yield Sender(client, path, {"after": after}, rate, patience)

    @contextmanager
    def to_all(self, *, rate: float, patience: float = _PATIENCE) -> Iterator["Sender"]:
        """Events that go where the rules lead them."""
        with self._client() as client:
            yield Sender(client, "/v1/events", {}, rate, patience)

    def post(
        self, findings: DataFrame, *, bucket: str, target: TargetId, after: int, looked: int, brakes: RepairLimits,
        newest: Callable[[Sequence[str]], Mapping[str, str]],
    ) -> int:  # fmt: skip
        """Post the repairs of the findings, at most as many as the brakes allow; how many are recorded now.

        Those whose objects changed after `after` are not. Raises `NotPosted`.
        """
        taken = 0
        with self.to_target(target, after=after, rate=brakes.rate) as sender:
            for portion in portions(findings.limit(brakes.most).toLocalIterator(), PORTION):
                found = [row.asDict() for row in portion]
                sequencers = newest([one["key"] for one in found])
                receipt = sender.send(
                    [record(one, bucket, target, sequencers.get(one["key"], ""), looked) for one in found]
                )
                taken += receipt["recorded"] + receipt["repeated"]
        return taken

    def _client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)


class Sender:
    """Sends portions of events over one connection, each until it is known what became of it."""

    def __init__(
        self, client: httpx.Client, path: str, params: Mapping[str, int], rate: float, patience: float
    ) -> None:
        self._client, self._path, self._params = client, path, params
        self._rate, self._patience = rate, patience
        self._due = time.monotonic()

    def send(self, records: Sequence[Mapping[str, Any]]) -> Counter[str]:
        """How many of the records were `recorded`, `repeated`, `overtaken`, and so on, as the API's receipt has it.

        Where the queue has no room for all of them it is asked again with fewer, until it has had room for each.
        Raises `NotPosted`; sending the same records again records none of them twice.
        """
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = time.monotonic() + len(records) / self._rate
        taken, waiting, moved = Counter[str](), [records], time.monotonic()
        while waiting:
            some = waiting.pop()
            try:
                taken += _counts(self._receipt(some))
            except _QueueFull as full:
                half = len(some) // 2
                if half:
                    waiting += [some[half:], some[:half]]
                    continue
                if time.monotonic() - moved > _FULL:
                    raise NotPosted(f"the target's queue is full and does not move: {full}") from None
                waiting.append(some)
                time.sleep(_PAUSE / 4)
            else:
                moved = time.monotonic()
        return taken

    def _receipt(self, records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        content, headers = orjson.dumps(body(records)), {"Content-Type": "application/json"}
        give_up = time.monotonic() + self._patience
        while True:
            try:
                answer = self._client.post(self._path, params=self._params, content=content, headers=headers)
            except httpx.HTTPError as error:
                reason = f"{self._client.base_url} does not answer: {error}"
            else:
                if answer.is_success:
                    receipt: Mapping[str, Any] = answer.json()
                    return receipt
                reason = f"{self._client.base_url} answered {answer.status_code}: {answer.text[:500]}"
                if answer.status_code < 500:
                    raise NotPosted(reason)
                if ":queue-full" in answer.text:
                    raise _QueueFull(reason)
            if time.monotonic() > give_up:
                raise NotPosted(reason)
            time.sleep(_PAUSE)


def _counts(receipt: Mapping[str, Any]) -> Counter[str]:
    """The receipt's numbers; of those by target the sums."""
    return Counter({name: sum(found.values()) if isinstance(found, dict) else found for name, found in receipt.items()})


def portions(things: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """The things, `size` at a time."""
    portion: list[_T] = []
    for thing in things:
        portion.append(thing)
        if len(portion) == size:
            yield portion
            portion = []
    if portion:
        yield portion
