"""Policies that decide who shares which GPU, under sustained load: one table, paired by seed.

    python bench/placement.py [--parts mixed,equal,cold,wrong,demanding,decisions] [--gpus 20] [--seeds 10]
        [--minutes 8] [--keep out/placement.jsonl] [--slots 1]

Jobs arrive at random for `--minutes`; the first and the last fifth of them are not counted. A load is the work that
arrives over what the GPUs do without sharing.

    mixed      GPUs of five models, all is known
    equal      the same number of V100s, all is known
    cold       five models, and a history that begins empty
    wrong      five models, and beliefs that are wrong: run times by a factor of ten, memory by 30 %, speeds by 20 %
    demanding  five models, all is known; one job in ten asks for two whole GPUs, one in ten for most of a node's CPU
    decisions  the processor time of decisions on 1,000 GPUs with 10,000 waiting jobs

`oracle` is `pairs` where it knows all that the others do not, or orders by true run times without sharing; it is no
policy that anyone could run. Seeds from `FIRST_SEED` on were looked at for nothing else; constants were chosen on those
from 700,000 on. With `--keep`, finished runs are not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.gpu_models import GPU_MODELS
from berth.interference import make_interference
from berth.knowledge import Oracle, make_knowledge
from berth.model import EventKind, Job, Node, Placement, Reason
from berth.policies import Setting, make_policy
from berth.policies.protocol import Decision
from berth.profiles import THESIS_GPU, workload_jobs
from berth.statistics.spread import confidence_interval_95
from harness import count, save

FIRST_SEED = 31_000
CARDS = ("TITAN-XP", "T4", "V100", "RTX-3090", "A100-40")
PER_NODE, CPU_MILLI = 4, 64_000
POLICIES = (
    "easy+fifo+whole-gpus", "greedy", "random-sharing", "tetris-sharing", "pairs", "learned",
)  # fmt: skip
ORACLE = "oracle"
LOADS = {"mps": (1.6, 2.5, 3.5, 5.0), "time-sliced": (1.2, 1.6, 2.0)}
ONE_LOAD = {"mps": (2.5,), "time-sliced": (1.6,)}
KNOWLEDGE = {"cold": "history?begin=empty", "wrong": "noisy?run=2.3&memory=0.3&pair=0.2"}
PARTS = ("mixed", "equal", "cold", "wrong", "demanding", "decisions")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of one policy."""

    part: str
    mode: str
    load: float
    policy: str
    seed: int
    gpus: int
    minutes: float


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it; of the jobs that are counted."""

    completion_s: float
    wait_s: float
    longest_wait_s: float
    lost: int
    out_of_memory: int
    cpu_s: float


def cells(parts: list[str], gpus: int, seeds: int, minutes: float) -> Iterator[Cell]:
    """All runs, one world after the other."""
    for part in parts:
        if part == "decisions":
            continue
        for mode, loads in (LOADS if part in ("mixed", "equal") else ONE_LOAD).items():
            for load in loads:
                for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                    for policy in (*POLICIES, ORACLE):
                        yield Cell(part, mode, load, policy, seed, gpus, minutes)


@cache
def nodes_of(part: str, gpus: int) -> tuple[Node, ...]:
    """Nodes of four GPUs."""
    models = ("V100",) if part == "equal" else CARDS
    return tuple(
        Node(f"node-{at:03}", PER_NODE, GPU_MODELS[models[at % len(models)]], CPU_MILLI)
        for at in range(-(-gpus // PER_NODE))
    )


@cache
def jobs_of(cell: Cell) -> tuple[Job, ...]:
    """The jobs that arrive; the same for each policy."""
    gpus = sum(node.gpus for node in nodes_of(cell.part, cell.gpus))
    many = int(3 * cell.minutes * gpus * cell.load) + 100
    draw = np.random.default_rng([cell.seed, 9])
    made = workload_jobs("random", many, cell.seed)
    work_ms = float(np.mean([job.work_ms or 0 for job in made]))
    at_ms = np.cumsum(draw.exponential(work_ms / (gpus * cell.load), many)).astype(np.int64).tolist()
    kinds = draw.random(many) if cell.part == "demanding" else np.ones(many)
    return tuple(
        replace(
            job, submit_ms=at, gpus=2 if kind < 0.1 else 1, cpu_milli=48_000 if 0.1 <= kind < 0.2 else 1000
        )
        for job, at, kind in zip(made, at_ms, kinds.tolist(), strict=True)
        if at < 60_000 * cell.minutes
    )


def run(cell: Cell) -> tuple[Cell, Found]:
    """Simulate one."""
    jobs, truth = jobs_of(replace(cell, policy="")), make_interference(cell.mode)
    knowing = KNOWLEDGE.get(cell.part, "oracle")
    name = cell.policy
    if name == ORACLE:
        name = "pairs" if knowing != "oracle" else "sjf+whole-gpus"
        knowing = "oracle"
    knowledge = make_knowledge(knowing, jobs, truth, cell.seed)
    policy = make_policy(name, Setting(cell.seed, knowledge=knowledge))
    cluster = Cluster(nodes_of(cell.part, cell.gpus))
    begun: dict[str, int] = {}
    ended: dict[str, int] = {}
    full = 0
    begin = time.process_time()
    for event in simulate(jobs, cluster, policy, knowledge=knowledge, interference=truth, seed=cell.seed):
        if event.kind is EventKind.START:
            begun.setdefault(event.job.id, event.time_ms)
        elif event.kind is EventKind.FINISH:
            ended[event.job.id] = event.time_ms
        elif event.kind is EventKind.FAIL and event.reason == Reason.OUT_OF_MEMORY:
            full += 1
    spent = time.process_time() - begin
    fifth = len(jobs) // 5
    counted = [job for job in jobs[fifth : len(jobs) - fifth] if job.id in ended]
    waits = [begun[job.id] - job.submit_ms for job in counted]
    return cell, Found(
        float(np.mean([ended[job.id] - job.submit_ms for job in counted])) / 1000,
        float(np.mean(waits)) / 1000,
        max(waits) / 1000,
        len(jobs) - len(ended),
        full,
        spent,
    )


def measured(wanted: list[Cell], keep: Path, slots: int) -> dict[Cell, Found]:
    """All runs; those that are kept are not run again."""
    found: dict[Cell, Found] = {}
    if keep.is_file():
        for line in keep.read_text().splitlines():
            kept = json.loads(line)
            found[Cell(**kept["cell"])] = Found(**kept["found"])
    missing = [cell for cell in wanted if cell not in found]
    keep.parent.mkdir(parents=True, exist_ok=True)
    with keep.open("a") as file, ProcessPoolExecutor(slots) as processes:
        for cell, one in processes.map(run, missing):
            found[cell] = one
            file.write(json.dumps({"cell": asdict(cell), "found": asdict(one)}) + "\n")
            file.flush()
    return {cell: found[cell] for cell in wanted}


def less_pct(mine: list[Found], others: list[Found]) -> dict[str, float | None]:
    """By how much the mean completion of one is below that of another, per cent, paired by seed."""
    gaps = [100 * (a.completion_s / b.completion_s - 1) for a, b in zip(mine, others, strict=True)]
    interval = confidence_interval_95(gaps)
    told = [None if np.isnan(one) else float(one) for one in (interval.low, interval.high)]
    return {"mean": interval.mean, "low_95": told[0], "high_95": told[1]}


def table(found: dict[Cell, Found]) -> list[dict[str, object]]:
    """A row for each world and policy."""
    rows: list[dict[str, object]] = []
    worlds = dict.fromkeys((cell.part, cell.mode, cell.load) for cell in found)
    for part, mode, load in worlds:
        of: dict[str, list[Found]] = {}
        for cell, one in found.items():
            if (cell.part, cell.mode, cell.load) == (part, mode, load):
                of.setdefault(cell.policy, []).append(one)
        for policy, runs in of.items():
            gap = less_pct(of["learned"], runs)
            rows.append(
                {
                    "part": part, "mode": mode, "load": load, "policy": policy,
                    "completion_s": float(np.mean([one.completion_s for one in runs])),
                    "wait_s": float(np.mean([one.wait_s for one in runs])),
                    "longest_wait_s": max(one.longest_wait_s for one in runs),
                    "lost": sum(one.lost for one in runs),
                    "out_of_memory": sum(one.out_of_memory for one in runs),
                    "cpu_s": float(np.mean([one.cpu_s for one in runs])),
                    "learned_less_this_pct": gap,
                }
            )  # fmt: skip
            within = "" if gap["low_95"] is None else f" [{gap['low_95']:+.1f}, {gap['high_95']:+.1f}]"
            print(
                f"{part}, {mode}, load {load:g}: {policy} {rows[-1]['completion_s']:.1f} s, learned less it"
                f" {gap['mean']:+.1f} %{within}; waits {rows[-1]['wait_s']:.1f} s, longest"
                f" {rows[-1]['longest_wait_s']:.0f} s, {rows[-1]['lost']} lost, {rows[-1]['out_of_memory']} out of"
                f" memory, processor {rows[-1]['cpu_s']:.1f} s",
                flush=True,
            )
    return rows


def decisions(policy: str, gpus: int, waiting: int, events: int) -> dict[str, float]:
    """Processor time in ms: to fill idle GPUs, and of decisions on full ones as jobs end and come."""
    truth = make_interference("mps")
    nodes = [Node(f"n{at}", 8, THESIS_GPU) for at in range(gpus // 8)]
    made = make_policy(policy, Setting(0, knowledge=Oracle((), truth)))
    filled: list[float] = []
    for seed in range(FIRST_SEED, FIRST_SEED + 4):
        cluster, queue = Cluster(nodes), Queue()
        for at, job in enumerate(workload_jobs("random", waiting, seed)):
            queue.add(replace(job, id=f"{at}"))
        spent = 0.0
        asked = iter(made(queue, cluster, 0))
        while True:
            begin = time.process_time()
            decision = next(asked, None)
            spent += time.process_time() - begin
            if decision is None:
                break
            if isinstance(decision, Placement):
                cluster.place(decision)
                queue.remove(decision.job)
        filled.append(1000 * spent)
    first = waiting + 4 * gpus
    jobs = [
        replace(job, id=f"{at}", submit_ms=max(0, at - first) * 20)
        for at, job in enumerate(workload_jobs("random", first + events, FIRST_SEED))
    ]
    took: list[float] = []

    def timed(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        spent = 0.0
        asked = iter(made(queue, cluster, now_ms))
        while True:
            begin = time.process_time()
            decision = next(asked, None)
            spent += time.process_time() - begin
            if decision is None:
                took.append(1000 * spent)
                return
            yield decision

    for _ in simulate(jobs, Cluster(nodes), timed, interference=truth):
        if len(took) > events:
            break
    later = np.array(took[1:])
    return {
        "fill_ms": float(np.median(filled[1:])),
        "median_ms": float(np.median(later)),
        "p99_ms": float(np.percentile(later, 99)),
        "decisions": len(later),
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--gpus", type=count, default=20)
    parser.add_argument("--seeds", type=count, default=10)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--keep", type=Path, default=Path("out/placement.jsonl"))
    parser.add_argument("--slots", type=count, default=1)
    asked = parser.parse_args()
    parts = asked.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"no part '{unknown[0]}'; there are {', '.join(PARTS)}")
    wanted = list(cells(parts, asked.gpus, asked.seeds, asked.minutes))
    results: dict[str, object] = {"rows": table(measured(wanted, asked.keep, asked.slots))}
    if "decisions" in parts:
        for policy in ("greedy", "pairs", "learned"):
            results[f"decisions of {policy}"] = found = decisions(policy, 1000, 10_000, 400)
            print(
                f"{policy}: fills 1,000 GPUs in {found['fill_ms']:.0f} ms of processor time; on full GPUs median"
                f" {found['median_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms of {found['decisions']:.0f} decisions",
                flush=True,
            )
    save("placement", results)


if __name__ == "__main__":
    main()
