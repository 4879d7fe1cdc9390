"""How fast `learned` decides: one GPU at a time with M = 5, with plans and without, and M = 10; a pass that fills many
idle GPUs from a long queue; and the decisions that follow on the full cluster while jobs end and come.

Loading (compiling, reading the model, the first look at each set of applications) is done before. Times are wall times;
the processor's stand beside them, as a machine that is shared makes the former long.

    python bench/colocation_decisions.py [--gpus 1000] [--jobs 10000] [--decisions 2000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from cProfile import Profile
from dataclasses import replace
from functools import partial
from pathlib import Path
from pstats import Stats

import numpy as np

from berth.arrays import IntArray
from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.interference import make_interference
from berth.knowledge import Oracle, make_knowledge
from berth.model import Node, Placement
from berth.policies import Setting, make_policy
from berth.policies.colocation.colocating import Colocating
from berth.policies.colocation.scene import Chooser, Scene
from berth.policies.protocol import Decision, Policy
from berth.profiles import THESIS_GPU, workload_jobs
from harness import count, save

FIRST_SEED = 500_000
LOADS = 8
"""Passes before the one that is profiled, by which tables have grown to their size."""
IN_DOUBT = "noisy?run=0.1&memory=0.03&pair=0.1"


def one_at_a_time(interference: str, window: int, plans: int, decisions: int) -> dict[str, float]:
    """The times of single decisions, from the offer to the choice, on sets that follow one another."""
    model = make_interference(interference)
    cluster = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
    wall: list[float] = []
    cpu: list[float] = []
    seed = FIRST_SEED

    def watched(policy: Policy) -> Policy:
        assert isinstance(policy, Colocating)
        choose, forecasts = policy.choose, policy.forecaster.forecasts
        begun = [0.0, 0.0]

        def begin(*arguments: object) -> object:
            begun[:] = time.perf_counter(), time.process_time()
            return forecasts(*arguments)  # type: ignore[arg-type]

        def end(scene: Scene) -> IntArray:
            chosen = choose(scene)
            wall.append(time.perf_counter() - begun[0])
            cpu.append(time.process_time() - begun[1])
            return chosen

        policy.choose, policy.forecaster.forecasts = end, begin  # type: ignore[method-assign,assignment]
        return policy

    policy = watched(
        make_policy(f"learned?window={window}&plans={plans}", Setting(0, knowledge=Oracle((), model)))
    )
    loaded = 0
    while len(wall) - loaded < decisions:
        for _ in simulate(workload_jobs("random", 30, seed), cluster, policy, interference=model):
            pass
        seed += 1
        if seed == FIRST_SEED + 20:
            loaded = len(wall)
    measured, processor = np.array(wall[loaded:]) * 1000, np.array(cpu[loaded:]) * 1000
    return {
        "decisions": len(measured),
        "median_ms": float(np.median(measured)),
        "p99_ms": float(np.percentile(measured, 99)),
        "p99_cpu_ms": float(np.percentile(processor, 99)),
        "worst_ms": float(measured.max()),
    }


def in_doubt(interference: str, sets: int) -> dict[str, float]:
    """The processor time of single choices where run times, memory and speeds are in doubt, one new policy a set."""
    truth = make_interference(interference)
    took_ms: list[float] = []

    def timed(choose: Chooser, scene: Scene) -> IntArray:
        begin = time.process_time()
        chosen = choose(scene)
        took_ms.append(1000 * (time.process_time() - begin))
        return chosen

    for seed in range(FIRST_SEED, FIRST_SEED + sets):
        jobs = workload_jobs("random", 30, seed)
        knowledge = make_knowledge(IN_DOUBT, jobs, truth, seed)
        policy = make_policy("learned", Setting(seed, knowledge=knowledge))
        assert isinstance(policy, Colocating)
        policy.choose = partial(timed, policy.choose)
        cluster = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
        for _ in simulate(jobs, cluster, policy, knowledge=knowledge, interference=truth, seed=seed):
            pass
    found = np.array(took_ms)
    return {
        "decisions": len(found),
        "median_cpu_ms": float(np.median(found)),
        "p99_cpu_ms": float(np.percentile(found, 99)),
        "worst_cpu_ms": float(found.max()),
    }


def shares_of_modules(interference: str, gpus: int, jobs: int) -> dict[str, float]:
    """Where a pass that fills idle GPUs spends its time, by cProfile: parts of the whole, the largest first."""
    model = make_interference(interference)
    nodes = [Node(f"n{at}", gpus=8, gpu_model=THESIS_GPU) for at in range(-(-gpus // 8))]
    policy = make_policy("learned", Setting(0, knowledge=Oracle((), model)))
    profiler = Profile()
    for run in range(LOADS + 1):
        cluster, queue = Cluster(nodes), Queue()
        for at, job in enumerate(workload_jobs("random", jobs, FIRST_SEED + run)):
            queue.add(replace(job, id=f"{at}"))
        if run < LOADS:
            one_pass(policy, queue, cluster, 0)
        else:
            profiler.runcall(one_pass, policy, queue, cluster, 0)
    spent: dict[str, float] = {}
    for (path, _, _), (_, _, own_s, _, _) in Stats(profiler).stats.items():  # type: ignore[attr-defined]
        module = Path(path).stem if "berth" in path else "NumPy and built-ins"
        if "bench" not in path and Path(path).stem not in ("cluster", "queue"):  # not the policy's
            spent[module] = spent.get(module, 0.0) + own_s
    total_s = sum(spent.values())
    return {module: own_s / total_s for module, own_s in sorted(spent.items(), key=lambda one: -one[1])}


def whole_pass(interference: str, gpus: int, jobs: int, runs: int) -> dict[str, float]:
    """One call of the policy that fills a cluster from a long queue; then one when a tenth of the jobs has ended."""
    model = make_interference(interference)
    nodes = [Node(f"n{at}", gpus=8, gpu_model=THESIS_GPU) for at in range(-(-gpus // 8))]
    filled: list[tuple[float, float]] = []
    later: list[tuple[float, float]] = []
    started = 0
    policy = make_policy("learned", Setting(0, knowledge=Oracle((), model)))
    for run in range(runs + 1):
        cluster, queue = Cluster(nodes), Queue()
        waiting = [
            replace(job, id=f"{at}") for at, job in enumerate(workload_jobs("random", jobs, FIRST_SEED + run))
        ]
        for job in waiting:
            queue.add(job)
        first = one_pass(policy, queue, cluster, 0)
        started = len(cluster.running)
        for identity in [identity for at, identity in enumerate(cluster.running) if at % 10 == 0]:
            cluster.release(identity)
        for running in list(cluster.running.values()):
            running.advance(20_000, 800)
        second = one_pass(policy, queue, cluster, 20_000)
        if run:  # the first loads
            filled.append(first)
            later.append(second)
    return {
        "gpus": float(sum(node.gpus for node in cluster.nodes)),
        "jobs": jobs,
        "started": started,
        "fill_ms": float(np.median([wall for wall, _ in filled])),
        "fill_cpu_ms": float(np.median([cpu for _, cpu in filled])),
        "fill_least_ms": min(wall for wall, _ in filled),
        "later_ms": float(np.median([wall for wall, _ in later])),
        "later_cpu_ms": float(np.median([cpu for _, cpu in later])),
        "later_least_ms": min(wall for wall, _ in later),
    }


def when_full(interference: str, gpus: int, jobs: int, decisions: int) -> dict[str, float]:
    """Decisions of a simulation whose GPUs are all taken, with about `jobs` waiting; their processor time in ms."""
    model = make_interference(interference)
    cluster = Cluster([Node(f"n{at}", gpus=8, gpu_model=THESIS_GPU) for at in range(-(-gpus // 8))])
    first = jobs + 3 * gpus
    waiting = [
        replace(job, id=f"{at}", submit_ms=max(0, at - first) * 20)
        for at, job in enumerate(workload_jobs("random", first + decisions, FIRST_SEED))
    ]
    policy = make_policy("learned", Setting(0, knowledge=Oracle((), model)))
    took_ms: list[float] = []

    def timed(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        spent = 0.0
        asked = iter(policy(queue, cluster, now_ms))
        while True:
            begin = time.process_time()
            decision = next(asked, None)
            spent += time.process_time() - begin
            if decision is None:
                took_ms.append(1000 * spent)
                return
            yield decision

    for _ in simulate(waiting, cluster, timed, interference=model):
        if len(took_ms) > decisions:
            break
    later = np.array(took_ms[1:])
    return {
        "decisions": len(later),
        "median_cpu_ms": float(np.median(later)),
        "p95_cpu_ms": float(np.percentile(later, 95)),
    }


def one_pass(policy: Policy, queue: Queue, cluster: Cluster, now_ms: int) -> tuple[float, float]:
    """Wall and processor time in ms that one call of the policy takes; its decisions are applied in between."""
    decisions = iter(policy(queue, cluster, now_ms))
    wall = cpu = 0.0
    while True:
        # A look at the processor's clock takes 1 µs, a fifth of a decision: the wall's is looked at inside.
        begin_cpu, begin = time.process_time(), time.perf_counter()
        decision = next(decisions, None)
        wall += time.perf_counter() - begin
        cpu += time.process_time() - begin_cpu
        if decision is None:
            return 1000 * wall, 1000 * cpu
        if isinstance(decision, Placement):
            cluster.place(decision, now_ms=now_ms)
            queue.remove(decision.job)


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=count, default=1000)
    parser.add_argument("--jobs", type=count, default=10_000)
    parser.add_argument("--decisions", type=count, default=2000)
    parser.add_argument("--runs", type=count, default=3)
    asked = parser.parse_args()
    results: dict[str, object] = {}
    for interference in ("mps", "time-sliced"):
        for window, plans, decisions in (
            (5, 120, asked.decisions), (5, 0, asked.decisions), (10, 0, max(1, asked.decisions // 10)),
        ):  # fmt: skip
            found = one_at_a_time(interference, window, plans, decisions)
            what = f"{interference}, M = {window}, {'with plans' if plans else 'network alone'}"
            results[what] = found
            print(
                f"{what}: median {found['median_ms']:.2f} ms, p99 {found['p99_ms']:.2f} ms"
                f" (processor {found['p99_cpu_ms']:.2f} ms) of {found['decisions']:,} decisions"
            )
        doubt = in_doubt(interference, sets=3)
        results[f"{interference}, in doubt"] = doubt
        print(
            f"{interference}, M = 5, in doubt: processor median {doubt['median_cpu_ms']:.2f} ms, p99"
            f" {doubt['p99_cpu_ms']:.1f} ms, longest {doubt['worst_cpu_ms']:.0f} ms of {doubt['decisions']:,} decisions"
        )
        shares = shares_of_modules(interference, asked.gpus, asked.jobs)
        results[f"{interference}, shares of a pass"] = shares
        largest = [f"{module} {100 * part:.0f} %" for module, part in list(shares.items())[:8]]
        print(f"{interference}, the pass by module: {', '.join(largest)}")
        found = whole_pass(interference, asked.gpus, asked.jobs, asked.runs)
        results[f"{interference}, pass"] = found
        print(
            f"{interference}, a pass over {found['gpus']:,.0f} idle GPUs with {asked.jobs:,} waiting jobs:"
            f" {found['fill_ms']:.0f} ms (processor {found['fill_cpu_ms']:.0f}, the shortest of {asked.runs}"
            f" {found['fill_least_ms']:.0f}), {found['started']:,} started; a pass when a tenth has ended:"
            f" {found['later_ms']:.0f} ms (processor {found['later_cpu_ms']:.0f}, the shortest"
            f" {found['later_least_ms']:.0f})"
        )
        full = when_full(interference, asked.gpus, asked.jobs, min(asked.decisions, 500))
        results[f"{interference}, full"] = full
        print(
            f"{interference}, decisions on {found['gpus']:,.0f} full GPUs with {asked.jobs:,} waiting jobs: processor"
            f" median {full['median_cpu_ms']:.1f} ms, p95 {full['p95_cpu_ms']:.1f} ms"
        )
    save("colocation_decisions", results)


if __name__ == "__main__":
    main()
