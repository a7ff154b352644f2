"""Events that keep coming in while something is done to the service, and how far they have come."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from random import Random
from typing import ClassVar

import httpx
import orjson

from app.outbox.admin.counters import TargetCounters, read_counters
from app.outbox.engine.database import DatabaseUnavailable
from tests.support.bucket_model import Bucket
from tests.support.ledger import UNKNOWN, Span
from tests.support.service_processes import System
from tests.support.target_readers import Expected, Record

_LARGE_EVERY = 2_000  # events


@dataclass
class Poster:
    """One frontend: posts its own objects' events in order, each body again until it is taken."""

    number: int
    rng: Random
    large: int = 0  # MiB of one event in about `_LARGE_EVERY`; 0: none
    repeats: ClassVar[bool] = False  # what the outbox has forgotten comes again by itself
    posts: ClassVar[bool] = True  # to the API
    buckets: list[Bucket] = field(init=False)
    sent: list[Record] = field(init=False, default_factory=list)
    spans: list[Span] = field(init=False, default_factory=list)  # when those that were taken were posted
    taken: int = 0
    _lists: threading.Lock = field(init=False, default_factory=threading.Lock)
    refused: Counter[str] = field(default_factory=Counter)  # what posts were answered that were not answered 202

    def __post_init__(self) -> None:
        self.buckets = [
            Bucket("plain", self.number, keys=120, versioned=False, rng=self.rng),
            Bucket("versioned", self.number, keys=60, versioned=True, rng=self.rng),
        ]

    def post(self, flow: Traffic) -> None:
        """Post as many events as the flow allows, in bodies of 20 to 200, until it is over."""
        with httpx.Client(timeout=15, trust_env=False) as client:
            while share := flow.wait_for_share(self.taken):
                batch = [self.rng.choice(self.buckets).next() for _ in range(min(share, self.rng.randint(20, 200)))]
                if self.large and self.rng.random() * _LARGE_EVERY < len(batch):
                    batch[-1]["s3"]["object"]["userMetadata"] = {"x-amz-meta-large": "x" * (self.large << 20)}
                with self._lists:
                    self.sent += batch
                content, began = orjson.dumps({"Records": batch}), time.monotonic()
                while refusal := self._refusal(client, flow.whole.api.url, content):
                    self.refused[refusal] += 1
                    if flow.over.wait(0.05):
                        return
                with self._lists:  # none of them are left there if they were drawn meanwhile
                    self.spans += [(began, time.monotonic())] * (len(self.sent) - len(self.spans))
                self.taken += len(batch)

    def draw(self) -> tuple[list[Record], list[Span]]:
        """Take away what was sent since the last call, and when; `UNKNOWN` for what no answer has come to yet."""
        with self._lists:
            sent, spans = self.sent[:], [*self.spans, *repeat(UNKNOWN, len(self.sent) - len(self.spans))]
            self.sent.clear()
            self.spans.clear()
            return sent, spans

    def accepted_after(self, moment: float) -> float | None:
        """When a post was first accepted after this moment, both by the monotonic clock; of those not drawn yet."""
        with self._lists:
            return min((accepted for _, accepted in self.spans if accepted > moment), default=None)

    @staticmethod
    def _refusal(client: httpx.Client, url: str, content: bytes) -> str:
        """Empty for a 202; else the status and the kind of the problem, or what became of the connection."""
        try:
            answer = client.post(f"{url}/v1/events", content=content)
        except httpx.TransportError as error:
            return type(error).__name__
        if answer.status_code == 202:
            return ""
        kind = answer.json()["type"].rpartition(":")[2] if "problem+json" in answer.headers["content-type"] else ""
        return f"{answer.status_code} {kind or answer.text[:200]}"


@dataclass
class Traffic:
    """The posters, how much each may post by now, and how far their events have come."""

    whole: System
    posters: Sequence[Poster]
    over: threading.Event = field(default_factory=threading.Event)
    _allowed: int = 0
    _more: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def running(self) -> Iterator[Traffic]:
        """Post, within what is allowed; at the end no poster runs any more, and what one has raised is raised."""
        with ThreadPoolExecutor(len(self.posters)) as pool:
            posting = [pool.submit(poster.post, self) for poster in self.posters]
            try:
                yield self
            finally:
                with self._more:
                    self.over.set()
                    self._more.notify_all()
            for each in posting:
                each.result()

    def allow_more(self, count: int) -> None:
        """Let each poster post so many more events."""
        with self._more:
            self._allowed += count
            self._more.notify_all()

    def wait_for_share(self, taken: int) -> int:
        """How many more events a poster may post; 0 when it is over."""
        with self._more:
            self._more.wait_for(lambda: self._allowed > taken or self.over.is_set())
            return 0 if self.over.is_set() else self._allowed - taken

    @property
    def taken(self) -> int:
        """How many events were answered 202."""
        return sum(poster.taken for poster in self.posters)

    @property
    def refused(self) -> Counter[str]:
        """What posts were answered, or came to, that were not answered 202."""
        return sum((poster.refused for poster in self.posters), Counter())

    @property
    def all_taken(self) -> bool:
        """Everything that was allowed was taken."""
        return self.taken == self._allowed * len(self.posters)

    def accepted_after(self, moment: float) -> float | None:
        """When any post was first accepted after this moment; None for none, or where nobody posts."""
        times = [poster.accepted_after(moment) for poster in self.posters if poster.posts]
        return min((each for each in times if each is not None), default=None)

    def counters(self) -> Sequence[TargetCounters]:
        """The counters of every target; none while they cannot be read."""
        try:
            with self.whole.database.reading() as connection:
                return read_counters(connection)
        except DatabaseUnavailable:
            return ()

    def expected(self) -> Expected:
        """What has to arrive at a target that gets everything."""
        expected = Expected()
        for poster in self.posters:
            expected.add(poster.sent)
        return expected

    def rows(self) -> dict[str, Record]:
        """What the buckets hold."""
        return {
            path: record
            for poster in self.posters
            for bucket in poster.buckets
            for path, record in bucket.rows().items()
        }
