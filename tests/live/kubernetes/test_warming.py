"""What a steerer compiles before the first pod waits for a decision."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from berth.knowledge import make_knowledge
from berth.live.driver.defaults import DEFAULT_KNOWLEDGE, DEFAULT_POLICY
from berth.live.driver.warming import warm_up
from tests.live.compilations import compiled
from tests.live.kubernetes.steered import bound, ended, node, pod, steered

warm_up(DEFAULT_POLICY, make_knowledge(DEFAULT_KNOWLEDGE))
assert compiled
compiled.clear()
limits_s = (60, 60, 60, 60, 1, 90, 90, 60, 90)
sizes = (600, 600, 1000, 1000, 300, 300, 600, 100, 100)
asked = {f"p{at}": {"gpu_milli": milli, "version": at} for at, milli in enumerate(sizes)}
pods = {name: pod(name, **each) for name, each in asked.items()}
for each, limit_s in zip(pods.values(), limits_s):
    each.spec.active_deadline_seconds = limit_s
board, running, now_ms = steered([node(gpus=2)], pods.values()), {}, 1000
while pods:
    starts = {name: bound(lift, **asked[name]) for name, lift in board.lifts(now_ms).items()}
    board.pods(now_ms, *starts.values())
    running |= starts
    board.driver.forecast(now_ms)
    now_ms += 1000
    first = next(iter(running))
    board.pods(now_ms, ended(running.pop(first)))
    del pods[first]
assert now_ms > 9000, now_ms
assert not compiled, compiled
"""


@pytest.mark.slow
def test_pods_that_go_ahead_of_others_compile_nothing_once_the_steerer_is_warm() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
