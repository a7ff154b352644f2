"""Beat's scheduler, by a clock that is set; in a process of its own, because its module reads the settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SET_BACK = """
import json
import time
from datetime import UTC, datetime, timedelta
from workers.celery import Scheduler, app

class Clock:
    ahead = 0.0

    def time(self):
        return real() + self.ahead

real, clock, sent = time.time, Clock(), []
time.time = clock.time
app.now = lambda: datetime.fromtimestamp(clock.time(), UTC)

class Notes(Scheduler):
    def apply_entry(self, entry, producer=None):
        sent.append(entry.task)

def turns(scheduler, seconds):
    sent.clear()
    clock.ahead += seconds
    for _ in range(20):
        scheduler.tick()
    return sorted(set(sent))

scheduler = Notes(app)
print(json.dumps([turns(scheduler, seconds) for seconds in (0, 20, -3600, 20, 20)]))
"""


def test_a_clock_that_is_set_back_by_an_hour_delays_nothing(tmp_path: Path) -> None:
    environment = {"BUCKETWIRE_DATA_DIR": str(tmp_path)}
    process = [sys.executable, "-c", SET_BACK]
    done = subprocess.run(process, env=os.environ | environment, capture_output=True, text=True, check=True)
    every = ["drain", "purge", "sample", "schedule_reconciliations"]
    assert json.loads(done.stdout) == [[], every, [], every, every]
