"""What an operator does while events flow and processes fail, and what is then expected at which target.

Each operation has an effect that can be decided from when its requests were sent and answered. Requests are repeated
until they are answered, as an operator would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import httpx

from app.outbox.engine.database import now_ms
from tests.services import Answer, speed
from tests.support.fault_injection import Servers, target_settings
from tests.support.ledger import Ledger, Stream, Window
from tests.support.service_processes import System

RULE = {"bucket": "plain", "prefix": "some folder/0+", "events": ["*"]}  # one frontend's objects in one bucket
REFUSED = "%2F0%2B1"  # in the records of objects that the strict webhook refuses at times
PATIENCE = 120  # seconds for one request to be answered, repetitions included
_ANSWER = 90  # seconds for one attempt: longer than anything is away, so that none is taken up again much later


def selected(path: str) -> bool:
    """Whether `RULE` names the object."""
    return path.startswith("plain/some folder/0+")


def in_order(path: str) -> bool:
    """Whether the strict webhook gets the object's events in order: those of dead letters come after later ones."""
    return "some folder/0+1" not in path


@dataclass
class Operator:
    """Makes targets of its own, and changes them and others. `wait` is the length of a lease in seconds."""

    whole: System
    servers: Servers
    ledger: Ledger
    wait: float
    generation: int = 0
    _streams: dict[str, Stream] = field(default_factory=dict)

    @property
    def streams(self) -> list[str]:
        """The names of the streams that its targets have had so far."""
        return list(self._streams)

    def make_targets(self) -> None:
        """Make the targets that only the operations change."""
        self._put("webhook:strict", {"endpoint": f"{self.servers.webhook_url}strict"})
        self._add_rule("webhook:strict")
        self._follow(Stream("strict", selects=selected, ordered=in_order))
        self._put("redis:ruled", self._list("ruled"))
        self._add_rule("redis:ruled")
        self._follow(Stream("ruled", selects=selected))
        self._create()

    def act(self, operation: str, seed: float) -> None:
        """Carry out one of `tests.chaos.plan.OPERATIONS`; `seed` is of its own choices."""
        rng = Random(seed)
        actions: dict[str, Callable[[Random], None]] = {
            "pause": self._pause,
            "replay": self._replay,
            "dead letters": self._refuse,
            "rules": self._change_rules,
            "re-create": self._recreate,
            "settings": self._change_settings,
        }
        actions[operation](rng)

    def replay_dead_letters(self) -> int:
        """Replay all that the strict webhook has refused; how many there were."""
        return int(self._ask("POST", "/v1/dead-letters/replay", json={"target": "webhook:strict"}).json()["replayed"])

    # --- the operations

    def _pause(self, rng: Random) -> None:
        name = self._any(rng).replace(":", "/")
        self._ask("POST", f"/v1/targets/{name}/pause", json={"reason": "chaos"})
        time.sleep(self.wait)
        self._ask("POST", f"/v1/targets/{name}/resume", json={})

    def _replay(self, rng: Random) -> None:
        # Without an end, so that the last that comes of each object is its newest event.
        asked = {"target": self._any(rng), "since": now_ms() - rng.randrange(5_000, 30_000)}
        if rng.random() < 0.5:
            asked["bucket"] = rng.choice(["plain", "versioned"])
        self._ask("POST", "/v1/replays", json=asked)

    def _refuse(self, _rng: Random) -> None:
        self.servers.receiver.set(Answer(status=400, path="/strict", containing=REFUSED))
        time.sleep(self.wait)
        self.servers.receiver.set()
        self.replay_dead_letters()

    def _change_rules(self, _rng: Random) -> None:
        stream = self._streams["ruled"]
        closing = time.monotonic()
        numbers = [
            rule["number"]
            for rule in self._ask("GET", "/v1/rules").json()["rules"]
            if rule["target"].endswith(":ruled:redis")
        ]
        for number in numbers:
            self._ask("DELETE", f"/v1/rules/{number}", or_status=404)
        *before, last = stream.windows
        windows = [*before, replace(last, closing=closing, closed=time.monotonic())]
        self._follow(replace(stream, windows=windows))
        time.sleep(self.wait / 2)
        opening = time.monotonic()
        self._add_rule("redis:ruled")
        self._follow(replace(stream, windows=[*windows, Window(opening, time.monotonic())]))

    def _recreate(self, _rng: Random) -> None:
        closing = time.monotonic()
        self._ask("DELETE", "/v1/targets/redis/recreated", params={"force": "true"}, or_status=404)
        old = self._streams[f"generation-{self.generation}"]
        window = replace(old.windows[0], closing=closing, closed=time.monotonic())
        self._follow(replace(old, windows=[window], complete=False))
        self._create()

    def _create(self) -> None:
        self.generation += 1
        name, opening = f"generation-{self.generation}", time.monotonic()
        self._put("redis:recreated", self._list(name))
        self._add_rule("redis:recreated")
        self._follow(Stream(name, [Window(opening, time.monotonic())], selected))

    def _change_settings(self, rng: Random) -> None:
        name = self._any(rng)
        self._put(name, {**target_settings(self.servers)[name], "batch_size": str(rng.choice([50, 200, 500]))})

    # --- how they are done

    def _any(self, rng: Random) -> str:
        return rng.choice(sorted(target_settings(self.servers)))

    def _list(self, key: str) -> dict[str, str]:
        return {"address": self.servers.redis_address, "key": key, "format": "access"}

    def _follow(self, stream: Stream) -> None:
        self._streams[stream.name] = stream
        self.ledger.follow(stream)

    def _put(self, name: str, settings: Mapping[str, str]) -> None:
        self._ask("PUT", f"/v1/targets/{name.replace(':', '/')}", json=settings)

    def _add_rule(self, target: str) -> None:
        self._ask("POST", "/v1/rules", json={**RULE, "target": target})

    def _ask(self, method: str, path: str, *, or_status: int = 0, **options: Any) -> httpx.Response:
        """The answer to a request, which is sent again while the service or its database is away."""
        deadline, problem = speed.deadline(PATIENCE), ""
        while time.monotonic() < deadline:
            try:
                with self.whole.client() as client:
                    answer = client.request(method, path, timeout=_ANSWER, **options)
            except httpx.TransportError as error:
                problem = repr(error)
            else:
                if answer.is_success or answer.status_code == or_status:
                    return answer
                problem = f"{answer.status_code} {answer.text}"
                assert answer.status_code >= 500, f"{method} {path}: {problem}"
            time.sleep(0.1)
        raise AssertionError(f"{method} {path} was not answered within {PATIENCE} s: {problem}")
