"""Faults that are planted in the simulator, one at a time: how many of them the reference finds.

`python -m tests.engine.mutants` plants each in a process of its own, and gives simulator and reference the same
scenarios until their events differ. It takes minutes, and is no part of the tests.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from random import Random
from types import ModuleType
from typing import NamedTuple

ASKED = 38
"""So many of the faults are to be found."""
LONGEST_S = 20.0
"""CPU time of one simulation, after which it goes on for ever."""


class Fault(NamedTuple):
    """A text of a module, and what stands there instead."""

    what: str
    module: str
    text: str
    instead: str


RUN, LEFT, OUTAGES = "berth.engine.run", "berth.cluster.work_left", "berth.cluster.outages"
EASY, PLAN, PREEMPT = (f"berth.policies.schemes.{name}" for name in ("easy", "conservative", "preempt"))
STRICT, ENDS, KEYS = (
    "berth.policies.schemes.strict",
    "berth.policies.schemes.expected_ends",
    "berth.policies.sort_keys",
)
ORDERS, SPEEDS, AFTER = "berth.policies.orders", "berth.card_speeds", "berth.engine.dependencies"
HEAD, SHADOW = "berth.policies.schemes.head_reservation", "berth.cluster.shadow"

FAULTS = (
    Fault("a reservation evicts its own users", RUN, "if run.job.user not in reservation.users and", "if"),
    Fault("a reservation evicts nobody", RUN, "self._clear(what, now_ms)\n", "pass\n"),
    Fault(
        "back-to-back reservations: the second opens the nodes",
        RUN,
        "END, LOST, DRAIN, BACK, OPEN, KEEP,",
        "END, LOST, DRAIN, BACK, KEEP, OPEN,",
    ),
    Fault("a reservation keeps nodes for all", RUN, "what.users if kind == KEEP else ()", "()"),
    Fault(
        "nobody is asked when a reservation ends",
        RUN,
        "self._reserve(what, what.users if kind == KEEP else (), now_ms)\n                decide = True",
        "self._reserve(what, what.users if kind == KEEP else (), now_ms)",
    ),
    Fault("nobody is asked when a job leaves", RUN, "if left and len(self.queue):", "if False:"),
    Fault(
        "nobody is asked when a node is back",
        RUN,
        "self._bring_back(what)\n                decide = True",
        "self._bring_back(what)",
    ),
    Fault(
        "nobody is asked when a job ends",
        RUN,
        "self._end(what, now_ms)\n                    decide = True",
        "self._end(what, now_ms)",
    ),
    Fault("a node with two outages is back after the first", RUN, "if not self.down[node]:", "if True:"),
    Fault(
        "maintenance fails jobs",
        RUN,
        "if drained:\n                self._evicted",
        "if False:\n                self._evicted",
    ),
    Fault(
        "patience is not watched after an eviction",
        RUN,
        "if job.patience_ms is not None and (waiting",
        "if False and (waiting",
    ),
    Fault(
        "patience goes on while a job runs",
        RUN,
        "if self.leaves:\n            self.leaves.pop(job_id, None)",
        "pass",
    ),
    Fault("a time limit does not end a job", RUN, "if limit_ms is not None:", "if False:"),
    Fault(
        "a time limit counts as success",
        RUN,
        "in_time = job.time_limit_ms is None or run.left_us_at(now_ms) <= 0",
        "in_time = True",
    ),
    Fault(
        "jobs after one that failed still start",
        RUN,
        "self._failed(run, Reason.TIME_LIMIT, now_ms)\n            self._never_finishes(job, now_ms)",
        "self._failed(run, Reason.TIME_LIMIT, now_ms)",
    ),
    Fault(
        "a job after two others starts after one",
        AFTER,
        "if job is not None and not missing:",
        "if job is not None:",
    ),
    Fault("a job never waits for another", AFTER, "return bool(missing)", "return False"),
    Fault("work that is left is forgotten", LEFT, "run.left_us = left_ms * 1000", "pass"),
    Fault(
        "a restart takes as long as its card is slow",
        LEFT,
        "run.left_us += self._recovery.restart_ms * 1000",
        "run.left_us += card_us(self._recovery.restart_ms * 1000, milli)",
    ),
    Fault("a restart takes no time", LEFT, "run.left_us += self._recovery.restart_ms * 1000", "pass"),
    Fault(
        "a job that loaded has done something", LEFT, "work_ms - min(left_ms, before_ms)", "work_ms - left_ms"
    ),
    Fault("every job keeps its work", LEFT, "if not job.keeps_work or work_ms", "if work_ms"),
    Fault(
        "checkpoints are written for nothing",
        LEFT,
        "run.work_us, run.left_us = run.work_us + writing_us, run.left_us + writing_us",
        "pass",
    ),
    Fault(
        "work on a slow card counts as work",
        LEFT,
        "left_ms = -(-run.left_ms * milli // 1000)",
        "left_ms = run.left_ms",
    ),
    Fault(
        "all work is kept, not that of checkpoints",
        OUTAGES,
        "done_ms // self.checkpoint_ms * self.checkpoint_ms",
        "done_ms",
    ),
    Fault(
        "the last checkpoint is written when work ends",
        OUTAGES,
        "(left_ms - 1) // self.checkpoint_ms",
        "left_ms // self.checkpoint_ms",
    ),
    Fault("a job over cards is as fast as its fastest", SPEEDS, "slowest = min(", "slowest = max("),
    Fault(
        "EASY: a gap-filler may end with the reservation, no later",
        EASY,
        "one.time_ms < expected_ms]",
        "one.time_ms <= expected_ms]",
    ),
    Fault("EASY: gap-fillers take no room", EASY, "reservation.take(job, slots)\n", "pass\n"),
    Fault(
        "EASY: a filler that ends before takes room",
        EASY,
        "if end_ms is not None and reservation.time_ms < end_ms:",
        "if end_ms is not None:",
    ),
    Fault("EASY: later jobs never fill", EASY, "if not heads or alone:", "if True:"),
    Fault(
        "EASY: the first job of no patience is reserved for",
        EASY,
        "elif job.patience_ms != 0:\n                heads",
        "else:\n                heads",
    ),
    Fault(
        "estimates go before time limits",
        KEYS,
        "(job.time_limit_ms, job.estimate_ms)",
        "(job.estimate_ms, job.time_limit_ms)",
    ),
    Fault(
        "expected on the fastest card",
        KEYS,
        "self._speeds.on(job, slots, nodes)",
        "self._speeds.fastest(job)",
    ),
    Fault("conservative: no room is reserved", PLAN, "plan.take(job, slots, start_ms, runs_ms)\n", "pass\n"),
    Fault(
        "conservative: the first free moment is enough",
        PLAN,
        "np.minimum.reduce(self._rooms[first:last])",
        "self._rooms[first]",
    ),
    Fault(
        "preempt evicts needlessly",
        PREEMPT,
        "if place == len(gone) - 1 or shadow.slots(job) is None:",
        "if True:",
    ),
    Fault(
        "preempt evicts equals",
        PREEMPT,
        "for other, run in behind if other > rank]",
        "for other, run in behind if other >= rank]",
    ),
    Fault(
        "deadline-first by the relative deadline",
        ORDERS,
        "else job.submit_ms + job.deadline_ms",
        "else job.deadline_ms",
    ),
    Fault(
        "a strict order is not strict",
        STRICT,
        "tried.first = job if self._as_queued else None\n                return",
        "tried.first = None",
    ),
)


class Planted(importlib.abc.MetaPathFinder):
    """Imports one module with the fault in it."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own, but for its source."""
        if name != self.fault.module:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert isinstance(spec.loader, SourceFileLoader)
        fault, loader = self.fault, spec.loader

        class Faulty(SourceFileLoader):
            def get_code(self, fullname: str) -> object:  # type: ignore[override]
                source = loader.get_source(fullname) or ""
                if source.count(fault.text) != 1:
                    raise SystemExit(
                        f"{source.count(fault.text)} places have {fault.text!r} in {fullname}; expected 1"
                    )
                return compile(source.replace(fault.text, fault.instead), loader.path, "exec")

        spec.loader = Faulty(loader.name, loader.path)
        return spec


def found_by(number: int, scenarios: int) -> str:
    """Which policy and seed finds a fault; empty for none."""
    sys.meta_path.insert(0, Planted(FAULTS[number]))
    signal.signal(signal.SIGVTALRM, _too_long)
    from tests.engine.scenarios import POLICIES, scenario

    for seed in range(scenarios):
        for policy in POLICIES:
            drawn = scenario(Random(seed), policy)
            signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
            try:
                told = drawn.told(policy)
            except Exception as error:  # noqa: BLE001  a fault may raise anything
                return f"{policy}, seed {seed}: {type(error).__name__}"
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            if told != drawn.wanted(policy):
                return f"{policy}, seed {seed}"
    return ""


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError


def main() -> int:
    """Plant all faults, or the one whose number is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=400, help="Scenarios of each policy.")
    parser.add_argument("--fault", type=int, help="Only the fault of this number.")
    options = parser.parse_args()
    if options.fault is not None:
        print(found_by(options.fault, options.n))
        return 0
    found = 0
    for number, fault in enumerate(FAULTS):
        command = [sys.executable, "-m", "tests.engine.mutants", "--fault", str(number), "-n", str(options.n)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        by = done.stdout.strip()
        found += bool(by)
        print(f"{number:2} {fault.what}: {by or 'NOT FOUND'}", flush=True)
    print(f"{found} of {len(FAULTS)} faults found; asked: {ASKED}")
    return 0 if found >= ASKED else 1


if __name__ == "__main__":
    sys.exit(main())
