"""A steady rate of events, targets that are emptied as fast as they fill, and the time from acceptance to delivery."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import httpx
import orjson
import redis as redis_py

from tests.services import Receiver, Redis
from tests.soak.pulled import Topic
from tests.support.bucket_model import Bucket
from tests.support.service_processes import System

LIST = "events"  # of both Redis targets that log
_EVERY = 0.2  # seconds between two posts
_LATE = 60  # seconds after which an arrival that nobody posted is forgotten


@dataclass
class Latencies:
    """Seconds from an event's acceptance to its delivery, collected until they are taken."""

    _accepted: dict[str, float] = field(default_factory=dict)
    _early: dict[str, float] = field(default_factory=dict)  # delivered before its acceptance was noticed
    _seconds: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def accepted(self, names: Iterable[str], at: float) -> None:
        """These were answered 202."""
        with self._lock:
            for name in names:
                if self._early.pop(name, None) is not None:
                    self._seconds.append(0.0)
                else:
                    self._accepted[name] = at

    def delivered(self, names: Iterable[str], at: float) -> None:
        """These have arrived."""
        with self._lock:
            for name in names:
                accepted = self._accepted.pop(name, None)
                if accepted is None:
                    self._early[name] = at  # or it came a second time, and is forgotten soon
                else:
                    self._seconds.append(at - accepted)
            self._early = {name: came for name, came in self._early.items() if came > at - _LATE}

    def take(self) -> list[float]:
        """What was collected since the last call."""
        with self._lock:
            taken, self._seconds = self._seconds, []
        return taken


@dataclass
class Load:
    """Posts `rate` events a second until it is over, or writes them to a topic."""

    whole: System
    rate: float
    latencies: Latencies
    topic: Topic | None = None
    taken: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self, *consumed: Redis, receiver: Receiver) -> Iterator[Load]:
        """Post; empty the lists of these servers, the first of which tells latencies, and what the receiver writes."""
        with ThreadPoolExecutor() as pool:
            jobs = [pool.submit(self._post), pool.submit(self._truncate, receiver)]
            jobs += [pool.submit(self._consume, server, server is consumed[0]) for server in consumed]
            try:
                yield self
            finally:
                self.over.set()
        for job in jobs:
            job.result()

    def _post(self) -> None:
        rng = Random(1)
        buckets = [
            Bucket("plain", 1, keys=500, versioned=False, rng=rng),
            Bucket("versioned", 1, keys=500, versioned=True, rng=rng),
        ]
        began, made = time.monotonic(), 0
        with httpx.Client(timeout=30, trust_env=False) as client:
            while not self.over.wait(max(0.0, began + made / self.rate - time.monotonic())):
                batch = [rng.choice(buckets).next() for _ in range(max(1, int(self.rate * _EVERY)))]
                made += len(batch)
                if self.topic is not None:
                    self.topic.write(batch)
                elif not self._posted(client, orjson.dumps({"Records": batch})):
                    return
                self.taken += len(batch)
                self.latencies.accepted(map(_name, batch), time.monotonic())

    def _posted(self, client: httpx.Client, content: bytes) -> bool:
        """Post until it is accepted; false if it is over before that."""
        while not self._taken(client, content):
            if self.over.wait(0.2):
                return False
        return True

    def _taken(self, client: httpx.Client, content: bytes) -> bool:
        try:
            status = str(client.post(f"{self.whole.api.url}/v1/events", content=content).status_code)
        except httpx.TransportError as error:
            status = type(error).__name__
        if status != "202":
            self.refused[status] += 1
        return status == "202"

    def _consume(self, server: Redis, measured: bool) -> None:
        with server.client() as client:
            while not self.over.wait(0.02):
                try:
                    entries = client.lpop(LIST, 5000) or []
                except redis_py.RedisError:  # it is down
                    continue
                if measured:
                    records = [orjson.loads(entry)[0]["Event"][0] for entry in entries]
                    self.latencies.delivered(map(_name, records), time.monotonic())

    def _truncate(self, receiver: Receiver) -> None:
        while not self.over.wait(5):
            os.truncate(receiver.file, 0)  # it appends


def _name(record: object) -> str:
    assert isinstance(record, dict)
    return f"{record['s3']['bucket']['name']} {record['responseElements']['x-amz-request-id']}"
