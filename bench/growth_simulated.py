"""What becomes of jobs that need more GPU memory than was said: killed, relaunched, let grow, let grow with suspension.

    python bench/growth_simulated.py [--seeds 3] [--first-seed 0] [--jobs 200] [--load 3] [--policy NAME]

Jobs of three mixes share GPUs by memory. Each takes half of its memory at once and the rest after a third of its run;
its user says 0.5 to 2 times of it. `berth simulate --when-full` runs them under a policy and the knowledge `history`.
Lost are the GPU-hours of attempts that failed, of calls that waited, and of moves; compute is not looked at.
Writes bench/results/growth_simulated.json.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from berth.cluster import Cluster
from berth.engine import simulate
from berth.engine.memory import WhenFull
from berth.interference import Outlook, Tenant
from berth.model import GpuModel, Job, Node, Reason, Share, work_of
from berth.statistics import event_columns, summarise
from berth.traces import read
from harness import count, save

MIXES = ("demo", "pai-like", "philly-like")
"""The generators of the mixes."""
CARD_MIB = 80 << 10
MEMORY_MIB = (6 << 10, 10 << 10, 16 << 10, 24 << 10, 36 << 10, 48 << 10)
SAID = (0.5, 0.7, 1.0, 1.2, 1.5, 2.0)
"""What users say of the memory that their jobs take; two applications of each."""


@dataclass(frozen=True)
class Halves:
    """A model of interference: no job slows another, and each takes its memory in two halves."""

    peaks_mib: Mapping[str, int]
    """By application."""

    def __call__(self, tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        return Outlook((1000,) * len(tenants))

    def memory_over_time(self, job: Job, gpu: GpuModel | None) -> Sequence[tuple[int, int]]:
        peak_mib = self.peaks_mib[job.application]
        return ((0, peak_mib // 2), (work_of(job) // 3, peak_mib))


def mix(name: str, jobs: int, seed: int) -> tuple[list[Job], Halves]:
    """The jobs of one GPU or less of a generator, of applications that take as much memory in each run."""
    draw, found = random.Random(seed), list[Job]()
    kinds = [(draw.choice(MEMORY_MIB), said) for said in SAID for _ in range(2)]
    for job in read(f"synthetic:{name}?seed={seed}"):
        if job.gpus != 1:
            continue
        kind = draw.randrange(len(kinds))
        mem_mib, said = kinds[kind]
        asked = replace(
            job, share=Share(100, min(CARD_MIB, round(mem_mib * said))), models=(), labels=(), cpu_milli=0,
            mem_mib=0, time_limit_ms=None, virtual_cluster="", application=f"app{kind}",
        )  # fmt: skip
        found.append(asked)
        if len(found) == jobs:
            break
    return found, Halves({f"app{kind}": mem_mib for kind, (mem_mib, _) in enumerate(kinds)})


def simulated(jobs: Sequence[Job], truth: Halves, way: str, gpus: int, policy: str) -> dict[str, float]:
    """One run: GPU-hours, and how often what happened."""
    nodes = [Node("here", gpus, GpuModel("A100-80G", mem_mib=CARD_MIB), None, None)]
    events = simulate(jobs, Cluster(nodes), policy, knowledge="history", interference=truth, when_full=way)
    summary = summarise(event_columns(events), nodes, memory=True)
    assert summary.finished == len(jobs), f"{way}: {summary.unfinished} jobs did not finish"
    return {
        "completion_h": summary.completion_time_s.mean / 3600, "held_gpu_h": summary.gpu_hours.held,
        "lost_gpu_h": summary.gpu_hours.wasted, "failed_gpu_h": summary.lost_gpu_hours or 0,
        "out_of_memory": summary.failures.get(Reason.OUT_OF_MEMORY, 0), "growths": summary.growths or 0,
        "suspensions": summary.suspensions or 0, "suspended_h": (summary.suspended_s or 0) / 3600,
    }  # fmt: skip


def main() -> None:
    """Print a row a mix and way, and one of each way over all mixes."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seeds", type=count, default=3)
    arguments.add_argument("--first-seed", type=int, default=0)
    arguments.add_argument("--jobs", type=count, default=200)
    arguments.add_argument("--load", type=float, default=3.0, help="GPU memory asked for over what there is")
    arguments.add_argument("--policy", default="easy+priority+worst-fit")
    words = arguments.parse_args()
    logging.disable(logging.WARNING)  # that run times are unknown at first
    rows = list[dict[str, Any]]()
    for name in MIXES:
        of_way: dict[str, list[dict[str, float]]] = {way: [] for way in WhenFull}
        for seed in range(words.first_seed, words.first_seed + words.seeds):
            jobs, truth = mix(name, words.jobs, seed)
            span_ms = max(1, jobs[-1].submit_ms - jobs[0].submit_ms)
            asked = sum(min(work_of(job), span_ms) * job.share.mem_mib for job in jobs)
            gpus = max(2, round(asked / span_ms / CARD_MIB / words.load))
            for way in WhenFull:
                of_way[way].append(simulated(jobs, truth, way, gpus, words.policy))
        for name_of_way, runs in of_way.items():
            rows.append(
                {"mix": name, "way": name_of_way, **{key: mean(run[key] for run in runs) for key in runs[0]}}
            )
    for way in WhenFull:
        of_all = [row for row in rows if row["way"] == way]
        sums = {key: sum(row[key] for row in of_all) for key in of_all[0] if key not in ("mix", "way")}
        rows.append({"mix": "all", "way": way, **sums})
    print("".join(f"{name:>15}" for name in (*rows[0], "less than kill", "than relaunch")))
    for row in rows:
        lost = {other["way"]: other["lost_gpu_h"] for other in rows if other["mix"] == row["mix"]}
        for way in (WhenFull.KILL, WhenFull.RELAUNCH):
            row[f"less_than_{way}_pct"] = 100 * (1 - row["lost_gpu_h"] / lost[way])
        texts = (f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values())
        print("".join(f"{text:>15}" for text in texts))
    save("growth_simulated", rows)


if __name__ == "__main__":
    main()
