"""What a brain compiles before it decides."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from berth.live.driver.defaults import MACHINE_POLICY
from tests.live.compilations import compiled
from tests.live.local.test_brain import begin, decide, ended, job, placed, runs

brain = begin(MACHINE_POLICY)
brain.warm_up()
assert compiled
compiled.clear()
limits_ms = (60_000, 60_000, 60_000, 60_000, 1_000, 90_000, 90_000, 60_000, 90_000)
sizes = (600, 600, 1000, 1000, 300, 300, 600, 100, 100)
jobs = {
    str(at): (milli, limit_ms, job(str(at), milli, time_limit_ms=limit_ms))
    for at, (milli, limit_ms) in enumerate(zip(sizes, limits_ms))
}
events, running, now_ms = [each[2] for each in jobs.values()], {}, 1000
while events:
    running |= (starts := placed(decide(brain, *events, now_ms=now_ms)))
    now_ms += 1000
    begun = [
        runs(name, *slots, milli=jobs[name][0], time_limit_ms=jobs[name][1]) for name, slots in starts.items()
    ]
    first = next(iter(running), "")
    events = begun + ([ended(first, end_ms=now_ms)] if first else [])
    running.pop(first, None)
assert now_ms > 9000, now_ms
assert not compiled, compiled
"""


@pytest.mark.slow
def test_a_queue_whose_jobs_go_ahead_of_others_compiles_nothing_once_it_is_up() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
