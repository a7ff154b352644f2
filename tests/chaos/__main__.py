"""`make chaos`: the long form of the acceptance tests that kill processes, with what each fault came to.

    python -m tests.chaos --events 20000 --rounds 11
    python -m tests.chaos --all --seed 7

In each round processes are killed, or stopped for three leases and then continued, or a target hangs, answers byte by
byte or gets a request late, or RabbitMQ refuses a queue, or the outbox fails over to a PostgreSQL standby that lags
behind, one or two at a time, while events flow and an operator changes something. When all is delivered again every
target is read by a client of its own. A row is about one round.
Ends with 1 where something was lost, made up, out of order or otherwise not as promised.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
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
    plan = draw(given.seed, given.rounds, parts_of(outbox, broker, given.source), given.only)
    rng, began, sound = Random(given.seed), time.monotonic(), True
    write(f"outbox {outbox}, broker {broker}, seed {given.seed}, lease {given.lease} s\n{HEADINGS}")
    with (
        serving(outbox, broker, proxied=True) as servers,
        system(
            servers.create_outbox(),
            servers.broker.url,
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
            for number, each in enumerate(plan):
                share = given.events * (number + 1) // len(plan) - given.events * number // len(plan)
                row = chaos.carry_out(each, share // len(posters), given.lease)
                write(str(row))
                sound = sound and row.sound
                if row.stuck:
                    break
        stop_all([*whole.roles, *servers.source_workers])
        row = chaos.after_the_stop()
        write(str(row))
    faults = sum(len(each.faults) for each in plan[: number + 1])
    write(
        f"{flow.taken} events, {faults} faults in {number + 1} rounds, {time.monotonic() - began:.0f} s; "
        f"posts refused: {dict(flow.refused)}\n"
    )
    return sound and row.sound


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--events", type=int, default=300_000, help="of each set-up (default %(default)s)")
    add("--rounds", type=int, default=54, help="of each set-up (default %(default)s: every single fault, and 18 pairs)")
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
    possible = set.intersection(*(set(single_faults(parts_of(*each, parsed.source))) for each in set_ups))
    if missing := [each for each in parsed.only if tuple(each.split(" ", 1)) not in possible]:
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
