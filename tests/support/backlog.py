"""What a service has not delivered, and which of its processes has it, in words for whoever asks why."""

from __future__ import annotations

from collections import Counter

import psutil

from app.outbox.admin.counters import TargetCounters, read_counters, read_partitions
from app.outbox.engine.database import DatabaseUnavailable, now_ms
from tests.services import reaper
from tests.support.service_processes import System


def waiting(whole: System) -> str:
    """How many events wait for which target, and who has leased the partitions in which they wait."""
    try:
        with whole.database.reading() as connection:
            counters = read_counters(connection)
        lines = [_described(whole, entry) for entry in counters if entry.undelivered or entry.dead]
    except DatabaseUnavailable as error:
        return f"the outbox cannot be read: {type(error).__name__}"
    return "; ".join(lines) or "nothing waits"


def _described(whole: System, entry: TargetCounters) -> str:
    since = f", the oldest for {(now_ms() - entry.oldest) / 1000:.1f} s" if entry.oldest else ""
    states = [each for each in read_partitions(whole.database, entry.target) if each.pending or each.parked]
    holders = Counter(_named(whole, each.holder) if each.holder else each.lease for each in states)
    partitions = "".join(f", {count} partitions {holder}" for holder, count in holders.items())
    return f"{entry.target} pending {entry.pending} parked {entry.parked} dead {entry.dead}{since}{partitions}"


def _named(whole: System, holder: str) -> str:
    """The role of `HOST:PID`, and the state of the process."""
    number = int(holder.rpartition(":")[2])
    for place, role in enumerate(whole.workers, 1):
        for process in reaper.family(role.pid) if role.running else ():
            if process.pid == number:
                return f"leased by process {number} ({process.status()}) of worker {place}"
    return f"leased by process {number}, which is {'no worker' if psutil.pid_exists(number) else 'gone'}"
