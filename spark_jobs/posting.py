"""Repairs on their way in: through the API to one target, in portions, no faster than is asked for."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.config.arn import TargetId
from spark_jobs.drift import DRIFT
from spark_jobs.repair import body, record

_PORTION = 500
_TRIES, _PAUSE = 6, 2.0


class NotPosted(Exception):
    """The API did not take the repairs; the message says why. What was posted before stays."""


@dataclass(frozen=True, slots=True)
class Brakes:
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
    """The service's API, asked with a token of scope admin."""

    url: str
    token: str = ""

    def post(
        self, findings: DataFrame, *, bucket: str, target: TargetId, after: int, looked: int, brakes: Brakes,
        newest: Callable[[Sequence[str]], Mapping[str, str]],
    ) -> int:  # fmt: skip
        """Post the repairs of the findings, at most as many as the brakes allow; how many are recorded now.

        Those whose objects had events after `after` are not. Raises `NotPosted`.
        """
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        path = f"/v1/targets/{target.type}/{target.name}/events"
        taken = 0
        with httpx.Client(base_url=self.url, headers=headers, timeout=60) as client:
            for portion in _portions(findings.limit(brakes.most).toLocalIterator(), _PORTION):
                began = time.monotonic()
                sequencers = newest([one["key"] for one in portion])
                events = [record(one, bucket, target, sequencers.get(one["key"], ""), looked) for one in portion]
                receipt = _post(client, path, after, orjson.dumps(body(events)))
                taken += receipt["recorded"] + receipt["repeated"]
                time.sleep(max(0.0, len(events) / brakes.rate - (time.monotonic() - began)))
        return taken


def _post(client: httpx.Client, path: str, after: int, content: bytes) -> Mapping[str, int]:
    """Sent again until it is known what became of it: each event is recorded once."""
    reason = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE)
        try:
            answer = client.post(
                path, params={"after": after}, content=content, headers={"Content-Type": "application/json"}
            )
        except httpx.HTTPError as error:
            reason = f"{client.base_url} does not answer: {error}"
            continue
        if answer.is_success:
            receipt: Mapping[str, int] = answer.json()
            return receipt
        reason = f"{client.base_url} answered {answer.status_code}: {answer.text[:500]}"
        if answer.status_code < 500:
            break
    raise NotPosted(reason)


def _portions(rows: Iterable[Any], size: int) -> Iterable[Sequence[Mapping[str, Any]]]:
    portion: list[Mapping[str, Any]] = []
    for row in rows:
        portion.append(row.asDict())
        if len(portion) == size:
            yield portion
            portion = []
    if portion:
        yield portion
