"""`make chaos`: the long form of the acceptance test that kills everything, with what each victim's deaths came to.

    python -m tests.chaos --events 1000000 --rounds 110

One victim after the other is killed, with posts and deliveries on their way, and when all is delivered again every
target is read by a client of its own. A row is about the time in which that victim was the one that died. Ends with 1
where something was lost, made up or out of order, or the books did not balance.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.acceptance.arrivals import Record, hashed, listed, posted, rows
from tests.acceptance.flow import Flow, Poster
from tests.acceptance.killing import Servers, Victim, Watch, kill, make_targets, serving, texts, victims
from tests.acceptance.ledger import Ledger
from tests.services import until
from tests.system import System, system

POSTERS = 4
PATIENCE = 900  # seconds in which a backlog of one victim's share has to be delivered
_HEADS = (
    "killed",
    "kills",
    "events",
    "lost",
    "unexpected",
    "duplicated",
    "disordered",
    "books",
    "at work",
    "caught up",
)
_LINE = "{:<17}{:>6}{:>9}{:>6}{:>12}{:>12}{:>12}{:>7}{:>10}{:>11}"


@dataclass
class Row:
    """What one victim's deaths came to; seconds are the worst."""

    name: str
    kills: int
    events: int
    lost: int
    unexpected: int
    duplicated: int
    out_of_order: int
    difference: int
    resumed: float
    recovered: float

    @property
    def sound(self) -> bool:
        """Nothing that may not be."""
        return not (self.lost or self.unexpected or self.out_of_order or self.difference)

    def __str__(self) -> str:
        figures = (self.lost, self.unexpected, self.duplicated, self.out_of_order, self.difference)
        seconds = (f"{self.resumed:.1f} s", f"{self.recovered:.1f} s")
        return _LINE.format(self.name, self.kills, self.events, *figures, *seconds)


@dataclass
class Chaos:
    """A running service that everything is killed of."""

    whole: System
    servers: Servers
    flow: Flow
    rng: Random
    ledger: Ledger = field(default_factory=Ledger)
    _written: int = 0

    def hurt(self, victim: Victim, events: int, rounds: int) -> Row:
        """Kill one so often, and tell what came of it when everything is delivered."""
        before, taken = self.ledger.total(), self.flow.taken
        share = max(1, events // POSTERS // (rounds + 1))
        with Watch(self.flow, PATIENCE).running() as watch:
            self.flow.allow_more(share)
            for _ in range(rounds):
                kill(victim, self.flow, watch, self.rng, share)
            until(lambda: self.flow.all_taken, PATIENCE, what="the last event taken")
            until(self.whole.settled, PATIENCE, what="the last event delivered")
        self._read()
        counts, lost = self.ledger.total(), self.ledger.lost() + self._wrong_rows()
        return Row(
            victim.name,
            len(victim.resumed),
            self.flow.taken - taken,
            lost,
            counts.unexpected - before.unexpected,
            counts.repeated - before.repeated,
            counts.out_of_order - before.out_of_order,
            sum(abs(entry.difference) + self._missing(entry.books.recorded) for entry in self.whole.audits()),
            max(victim.resumed),
            max(victim.recovered),
        )

    def _missing(self, recorded: int) -> int:
        return abs(recorded - self.flow.taken)

    def _read(self) -> None:
        for poster in self.flow.posters:
            self.ledger.record(poster.sent)
            poster.sent.clear()
        self.ledger.arrive("webhook", posted(self.servers.receiver))
        self.servers.receiver.forget()
        self.ledger.arrive("Redis list", listed(self.servers.redis, "list"))
        with self.servers.redis.client() as client:
            client.delete("list")
        self.ledger.arrive("PostgreSQL log", self._rows_written())

    def _rows_written(self) -> Iterator[Record]:
        with self.servers.postgres.connection("target") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT event_data, written FROM log WHERE written > %s ORDER BY written", (self._written,))
            for data, self._written in cursor:
                yield data["Records"][0]

    def _wrong_rows(self) -> int:
        """How many objects the two namespaces hold otherwise than the buckets do."""
        held = texts(self.flow.rows())
        found = texts(hashed(self.servers.redis, "rows")), texts(rows(self.servers.postgres, "target", "rows"))
        return sum(held.get(path) != each.get(path) for each in found for path in held.keys() | each.keys())


def tell(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(events: int, rounds: int, seed: str) -> bool:
    """Do it, and print a row for each victim; whether all were sound."""
    rng, began, sound = Random(seed), time.monotonic(), True
    tell(_LINE.format(*_HEADS))
    with serving() as servers, system(servers.database.create_database("outbox"), servers.broker.url) as whole:
        make_targets(whole, servers)
        flow = Flow(whole, [Poster(number, Random(rng.random())) for number in range(POSTERS)])
        marked = victims(whole, servers, rng)
        chaos = Chaos(whole, servers, flow, rng)
        kills = 0
        with flow.running():
            for victim in marked:
                row = chaos.hurt(victim, events // len(marked), -(-rounds // len(marked)))
                tell(str(row))
                sound, kills = sound and row.sound, kills + row.kills
        took = time.monotonic() - began
        tell(f"{flow.taken} events at five targets, {kills} kills, {took:.0f} s; posts refused: {dict(flow.refused)}")
    return sound


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="in all (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=110, help="kills in all, as many of each (default %(default)s)")
    parser.add_argument("--seed", default="1", help="of what happens when (default %(default)s)")
    given = parser.parse_args(arguments)
    try:
        return 0 if run(given.events, given.rounds, given.seed) else 1
    except LookupError as error:  # a server that is not here
        sys.stderr.write(f"chaos: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
