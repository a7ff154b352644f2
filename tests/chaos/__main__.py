"""`make chaos`: the long form of the acceptance tests that kill processes, with what each fault came to.

    python -m tests.chaos --events 20000 --rounds 11
    python -m tests.chaos --all --seed 7

In each round processes are killed, or stopped for three leases and then continued, or a target hangs, answers byte by
byte or after interim answers, or gets a request late, or RabbitMQ refuses a queue, or the broker's memory is full, or
the outbox fails over to a PostgreSQL standby that lags behind, or its connections are forgotten, or a snapshot of it is
held open, or bodies that grow are posted, one or two at a time, while events flow and an operator changes something.
When all is delivered again every target is read by a client of its own. A row is about one round.
Ends with 1 where something was lost, made up, out of order or otherwise not as promised.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from random import Random

from tests.chaos.operations import Operator
from tests.chaos.plan import PARTS, PULLER, SINGLE, draw, parts_of, single_faults
from tests.chaos.rounds import HEADINGS, Chaos
from tests.chaos.verification import Verification
from tests.support.fault_injection import BROKERS, OUTBOXES, make_targets, serving
from tests.support.ledger import Ledger
from tests.support.pulled_traffic import QUEUES, Sender, pulled_from
from tests.support.service_processes import System, stop_all, system
from tests.support.traffic import Poster, Traffic

EVENTS = 300_000
SOURCES = (PULLER, *(queue.part for queue in QUEUES.values()))
SET_UPS = (("postgresql", "redis"), ("mariadb", "rabbitmq"), ("sqlite", "redis"))


def write(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def make_idle_targets(whole: System, count: int) -> None:
    """Make so many targets that no rule names."""
    with whole.client() as client:
        for number in range(count):
            answer = client.put(f"/v1/targets/webhook/idle-{number}", json={"endpoint": "http://127.0.0.1:9/"})
            answer.raise_for_status()


def run(outbox: str, broker: str, given: argparse.Namespace) -> bool:
    """Do it over one set-up, and print a row for each round; whether all were sound."""
    plan = draw(given.seed, given.rounds, parts_of(outbox, broker, given.source), given.only, snapshot_seconds(given))
    shares = divided(given.events, [each.weight for each in plan])
    rng, began, sound = Random(given.seed), time.monotonic(), True
    intakes: list[float] = []
    write(f"outbox {outbox}, broker {broker}, seed {given.seed}, lease {given.lease} s\n{HEADINGS}")
    with (
        serving(outbox, broker, proxied=True) as servers,
        system(
            outbox_url := servers.create_outbox(),
            servers.broker.url,
            environ=servers.seen_by_service(outbox_url),
            workers=2,
            lease_ttl=f"{given.lease}s",
            lease_max_work=f"{given.lease * 5 / 6:.1f}s",
        ) as whole,
        pulled_from(whole, servers, given.source) as queues,
    ):
        make_targets(whole, servers)
        make_idle_targets(whole, given.idle)
        posters = [Poster(number, Random(rng.random()), given.large) for number in range(given.posters)]
        posters += [
            Sender(number, Random(rng.random()), queue=queue) for number, queue in enumerate(queues, len(posters))
        ]
        flow = Traffic(whole, posters)
        ledger = Ledger()
        operator = Operator(whole, servers, ledger, given.lease)
        operator.make_targets()
        chaos = Chaos(whole, servers, flow, operator, Verification(whole, servers, flow, ledger, operator))
        with flow.running():
            for each, share in zip(plan, shares, strict=True):
                row = chaos.carry_out(each, share // len(posters), given.lease)
                write(str(row))
                sound = sound and row.sound
                intakes.append(row.intake or 0)
                if row.stuck:
                    break
        stop_all([*whole.roles, *servers.source_workers])
        row = chaos.after_the_stop()
        write(str(row))
    rounds_done = len(intakes)
    faults = sum(len(each.faults) for each in plan[:rounds_done])
    write(
        f"{flow.taken} events, {faults} faults in {rounds_done} rounds, {time.monotonic() - began:.0f} s; "
        f"intake back within {max(intakes):.1f} s; load {os.getloadavg()[2]:.0f}; posts refused: {dict(flow.refused)}\n"
    )
    return sound and row.sound


def divided(events: int, weights: Sequence[int]) -> list[int]:
    """How many of the events each round has."""
    ends = [events * sum(weights[:number]) // sum(weights) for number in range(len(weights) + 1)]
    return [end - start for start, end in pairwise(ends)]


def snapshot_seconds(given: argparse.Namespace) -> float:
    """For how long a snapshot is held open: as the command line says, else ten minutes of a run of full length."""
    return float(given.snapshot or max(20, 600 * min(1, given.events / EVENTS)))


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--events", type=int, default=EVENTS, help="of each set-up (default %(default)s)")
    add("--rounds", type=int, default=60, help="of each set-up (default %(default)s: every single fault, and 20 pairs)")
    add("--seed", default="1", help="of what happens when (default %(default)s)")
    add("--idle", type=int, default=0, help="further targets that no rule names, such as 300 (default %(default)s)")
    add("--posters", type=int, default=4, help="senders that post their events (default %(default)s)")
    add(
        "--source",
        action="append",
        default=[],
        choices=QUEUES,
        help="one more sender writes to such a queue, from which two workers pull; several may be given",
    )
    add("--large", type=int, default=0, help="MiB of one event in each poster's rounds, such as 16 (default: none)")
    add(
        "--snapshot",
        type=float,
        help="seconds for which a snapshot of the outbox is held open (default: 600, less in a run of fewer events)",
    )
    add(
        "--lease",
        type=float,
        default=6,
        help="BUCKETWIRE_LEASE_TTL in seconds; a stop lasts three (default %(default)s)",
    )
    add("--outbox", choices=OUTBOXES, default="postgresql", help="(default %(default)s)")
    add("--broker", choices=BROKERS, default="redis", help="(default %(default)s)")
    singles = [" ".join(fault) for fault in single_faults((*PARTS, *SOURCES, *SINGLE))]
    add("--only", action="append", default=[], choices=singles, help="this single fault, and others so given")
    names = ", ".join(f"{outbox} with {broker}" for outbox, broker in SET_UPS)
    add("--all", action="store_true", help=f"one after the other: {names}")
    parsed = parser.parse_args(given)
    if not parsed.posters + len(parsed.source):
        parser.error("nobody sends anything: give --posters or --source")
    if len(set(parsed.source)) < len(parsed.source):
        parser.error("give each kind of --source once")
    set_ups = SET_UPS if parsed.all else [(parsed.outbox, parsed.broker)]
    faults = [single_faults(parts_of(*each, parsed.source)) for each in set_ups]
    possible = set.intersection(*({" ".join(fault) for fault in each} for each in faults))
    if missing := [each for each in parsed.only if each not in possible]:
        parser.error(f"not possible here: {', '.join(missing)}; give the --source, --outbox or --broker that it needs")
    return parsed


def main() -> int:
    """The command."""
    given = arguments()
    set_ups = SET_UPS if given.all else [(given.outbox, given.broker)]
    try:
        results = [run(outbox, broker, given) for outbox, broker in set_ups]
    except LookupError as error:  # a server that is not here
        sys.stderr.write(f"chaos: {error}\n")
        return 2
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
