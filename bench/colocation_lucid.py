"""`learned` on the applications that Lucid measured, which no model that ships was trained on as applications.

Each set has ten of them, drawn by its seed, thirty jobs, and one card of the model that they were measured on. What
Lucid published of an application alone is one row: its use does not change over its run, and how long it runs is drawn
(30 s to 5 min). The models of interference were fitted to pairs of these applications, so speeds are not unseen.

    python bench/colocation_lucid.py [--sets 30] [--jobs 2] [--data FOLDER]

Needs the traces' folder (CONTRIBUTING.md): `lucid/single.csv` and `lucid/colocate.csv`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from berth.experiments.compare.conditions import Conditions
from berth.experiments.compare.parallel import run_all
from berth.experiments.compare.sweep import Task
from berth.gpu_models import GPU_MODELS
from berth.interference import make_speeds
from berth.interference.profiled import ProfiledInterference
from berth.model import Node, Profile, Reason
from berth.profiles.drawn import drawn_jobs
from berth.statistics import paired_difference_95
from berth_papers.interference.measurements import Measurements, read_measurements
from harness import count, data_folder, save

FIRST_SEED = 31_000
"""Of sets that are used for nothing else."""
CARD = GPU_MODELS["RTX-3090"]
MODES = ("time-sliced", "mps")
KNOWLEDGES = ("oracle", "noisy?run=0.1&memory=0.03&pair=0.1")
POLICIES = ("greedy", "rule", "random-sharing", "pair-packer", "learned?plans=0", "learned")
APPLICATIONS, JOBS, INTERVAL_MS = 10, 30, 5_000
SHORTEST, LONGEST = 6, 60
"""Rows of a profile."""


def profiles_of(measured: Measurements, seed: int) -> dict[str, Profile]:
    """Ten of the measured applications, as profiles of a length that is drawn."""
    draw = np.random.default_rng([seed, 11])
    found = {}
    for at in draw.choice(len(measured.applications), APPLICATIONS, replace=False).tolist():
        rows = int(np.exp(draw.uniform(np.log(SHORTEST), np.log(LONGEST))))
        use = measured.usage[at] / np.array([1000, CARD.mem_mib, 1000, 1000])
        name = measured.applications[at]
        found[name] = Profile(name, "ML", 0, "", CARD, INTERVAL_MS, np.tile(use, (rows, 1)))
    return found


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=count, default=30)
    parser.add_argument("--jobs", type=count, default=1)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--policies", default=",".join(POLICIES))
    asked = parser.parse_args()
    folder = (asked.data or data_folder()) / "lucid"
    measured = read_measurements(folder / "single.csv", folder / "colocate.csv")
    policies = tuple(asked.policies.split(","))
    seeds = range(FIRST_SEED, FIRST_SEED + asked.sets)
    results: dict[str, object] = {}
    for mode in MODES:
        for knowledge in KNOWLEDGES:
            tasks = []
            for seed in seeds:
                profiles = profiles_of(measured, seed)
                truth = ProfiledInterference(profiles, make_speeds(mode))
                under = Conditions(interference=truth, interference_name=mode, knowledge=knowledge)
                jobs, nodes = drawn_jobs(profiles, JOBS, seed), (Node("node", gpus=1, gpu_model=CARD),)
                tasks += [Task(jobs, nodes, policy, seed, under) for policy in policies]
            runs = {
                (one.run.policy, one.run.seed): one.run.summary
                for one in run_all(tasks, asked.jobs, lambda *_: None)
            }
            learned = np.array([runs["learned", seed].makespan_s for seed in seeds])
            for policy in policies:
                there = [runs[policy, seed] for seed in seeds]
                total_s = np.array([one.makespan_s for one in there])
                less = paired_difference_95(learned, total_s) if len(seeds) > 2 else None
                scale = 100 / total_s.mean()
                found = {
                    "mean_s": float(total_s.mean()),
                    "learned_less_this_pct": float((learned - total_s).mean()) * scale,
                    "low_95": None if less is None else less.low * scale,
                    "high_95": None if less is None else less.high * scale,
                    "out_of_memory_per_100_jobs": 100
                    * sum(one.failures.get(Reason.OUT_OF_MEMORY, 0) for one in there)
                    / (JOBS * len(seeds)),
                    "lost": sum(one.jobs - one.finished for one in there),
                }
                results[f"{mode}, {knowledge}, {policy}"] = found
                interval = "" if less is None else f" [{found['low_95']:+.1f}, {found['high_95']:+.1f}]"
                print(
                    f"{mode}, {knowledge}: {policy} {found['mean_s']:,.0f} s, learned less it"
                    f" {found['learned_less_this_pct']:+.2f} %{interval};"
                    f" {found['out_of_memory_per_100_jobs']:.1f} out of memory per 100 jobs, {found['lost']} lost",
                    flush=True,
                )
    save("colocation_lucid", {"sets": asked.sets, "cells": results})


if __name__ == "__main__":
    main()
