"""A sender without a queue: it posts each event once, and what is not answered with 202 is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.services import until
from tests.support.api_requests import body


@dataclass
class OneTimeSender:
    """Threads that post to each of the URLs, over a new connection each time and over one that is kept."""

    urls: Sequence[str]
    name: str = "once"
    token: str = ""
    taken: list[str] = field(default_factory=list)  # keys
    lost: list[str] = field(default_factory=list)  # what the posts of the others came to

    @contextmanager
    def running(self) -> Iterator[None]:
        """Post until the block ends; every thread has posted in it at least once."""
        over = threading.Event()
        threads = [
            threading.Thread(target=self._post, args=(url, f"{self.name}-{number}-{kept}", kept, over))
            for number, url in enumerate(self.urls)
            for kept in (False, True)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _post(self, url: str, name: str, kept: bool, over: threading.Event) -> None:
        client, number = None, 0
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        while not over.is_set():
            number += 1
            client = client or httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False, verify=False)
            try:
                answer = client.post("/v1/events", content=body(f"{name}-{number}"))
            except httpx.HTTPError as error:
                self.lost.append(f"{name}-{number}: {error!r}")
            else:
                if answer.status_code == 202:
                    self.taken.append(f"{name}-{number}")
                else:
                    self.lost.append(f"{name}-{number}: {answer.status_code} {answer.text}")
            if not kept:
                client.close()
                client = None
        if client is not None:
            client.close()

    def wait_for_more(self, count: int = 50) -> None:
        """Return when so many more posts have been answered."""
        enough = len(self.taken) + len(self.lost) + count
        until(lambda: len(self.taken) + len(self.lost) >= enough, 60, what=f"{count} more posts")
