"""Co-locating policies in many worlds: workloads × modes × knowledges, on one GPU or on a mixed cluster with arrivals.

Each cell has the same sets of jobs for every policy, so that policies are compared in pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np

from berth.errors import SettingError
from berth.experiments.compare.conditions import Conditions
from berth.experiments.compare.kept import KeptRuns
from berth.experiments.compare.kept_file import continued
from berth.experiments.compare.parallel import run_all
from berth.experiments.compare.sweep import Result, Task
from berth.gpu_models import GPU_MODELS
from berth.interference import Interference, make_interference
from berth.interference.profiled import ProfiledInterference
from berth.knowledge import check_knowledge
from berth.model import Job, Node, Reason, work_of
from berth.policies import Progress, make_policy
from berth.profiles import THESIS_GPU, WORKLOADS, workload_jobs
from berth.profiles.drawn import DRAWN, drawn_jobs, drawn_profiles
from berth_papers.colocation.thesis import check_seeds

CARDS = ("TITAN-XP", "T4", "V100", "RTX-3090", "A100-40")
CLUSTERS = ("1x1", "20", "100")
"""One GPU of the thesis, or 20 or 100 GPUs of five models, four per node."""
PER_NODE = 4
JOBS, JOBS_PER_GPU = 30, 8
OPPONENTS = (
    "sjf+first-fit", "greedy", "random-sharing", "rule", "pair-packer", "rollouts", "dqn", "learned?plans=0", "learned",
)  # fmt: skip
"""What a matrix compares by default."""


@dataclass(frozen=True, slots=True)
class World:
    """What the sets of a row of the matrix are run in."""

    workload: str
    """One of the thesis's, or `drawn`."""
    mode: str
    """The model of interference that is true."""
    knowledge: str
    """What policies believe."""
    gpus: str = "1x1"
    """One of `CLUSTERS`."""
    arrivals: float = 0.0
    """Work that arrives over what the GPUs do alone; 0: all jobs wait at the beginning."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy on one set in one world."""

    world: World
    policy: str
    seed: int
    total_s: float
    """From the first submission to the last end."""
    completion_s: float
    """From submission to the end, mean over the jobs that finished."""
    longest_wait_s: float
    jobs: int
    lost: int
    """Jobs that never finished."""
    out_of_memory: int
    """Attempts that ran out of memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Everything that was measured."""

    worlds: tuple[World, ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]

    def of(self, world: World, policy: str) -> list[Cell]:
        """The cells of a policy in a world, in the order of the seeds."""
        found = {one.seed: one for one in self.cells if (one.world, one.policy) == (world, policy)}
        return [found[seed] for seed in self.seeds]


def worlds_of(
    workloads: Sequence[str], modes: Sequence[str], knowledges: Sequence[str], gpus: str, arrivals: float
) -> list[World]:
    """Every combination, checked: SettingError for what there is not."""
    if unknown := [name for name in workloads if name not in (*WORKLOADS, DRAWN)]:
        raise SettingError(f"no workload '{unknown[0]}'; there are {', '.join(WORKLOADS)}, {DRAWN}, and all")
    if gpus not in CLUSTERS:
        raise SettingError(f"no cluster of '{gpus}' GPUs in this experiment; there are {', '.join(CLUSTERS)}")
    if not 0 <= arrivals <= 10:
        raise SettingError(f"arrivals are {arrivals:g} times what the GPUs do; expected from 0 to 10")
    for name in modes:
        if not isinstance(make_interference(name), ProfiledInterference):
            raise SettingError(f"interference '{name}' knows no profiles; expected time-sliced, mps or mig")
    for name in knowledges:
        check_knowledge(name)
    every = product(*map(dict.fromkeys, (modes, knowledges, workloads)))
    return [World(workload, mode, knowledge, gpus, arrivals) for mode, knowledge, workload in every]


def measure_matrix(
    worlds: Sequence[World],
    *,
    policies: Sequence[str] = OPPONENTS,
    seeds: Sequence[int] = tuple(range(30)),
    processes: int = 1,
    keep: Path | None = None,
    progress: Progress | None = None,
) -> Matrix:
    """Run every policy on every set of every world; finished runs stay in `keep`, and are not run again.

    Raises SettingError for seeds that models are trained on, and PolicyError for policies that there are not.
    """
    if not worlds or not policies or not seeds:
        raise SettingError("the experiment needs at least one workload, one policy and one seed")
    check_seeds(seeds)
    for name in policies:
        make_policy(name)
    # What is named twice is run once.
    worlds = tuple(dict.fromkeys(worlds))
    policies = tuple(dict.fromkeys(policies))
    seeds = tuple(dict.fromkeys(seeds))
    found: dict[tuple[World, str, int], Cell] = {}
    for world in worlds:  # of one world at a time: results come in any order
        tasks = [_task(world, policy, seed) for seed in seeds for policy in policies]
        part = _after(progress, len(found), len(worlds) * len(tasks))
        run = partial(_run, processes)
        results = run(tasks, part) if keep is None else continued(tasks, _kept(keep, world), run, part)
        for task, result in results:
            found[world, task.policy, task.seed] = _cell(world, task, result.run.summary)
    cells = tuple(found[world, policy, seed] for world in worlds for seed in seeds for policy in policies)
    return Matrix(worlds, policies, seeds, cells)


def _after(progress: Progress | None, before: int, total: int) -> Progress | None:
    """The progress of one world as a part of all."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def _run(processes: int, tasks: Sequence[Task], progress: Progress | None) -> Iterator[tuple[Task, Result]]:
    of = {(task.policy, task.seed): task for task in tasks}
    for result in run_all(tasks, processes, progress):
        yield of[result.run.policy, result.run.seed], result


def bounds_s(world: World, seeds: Sequence[int], keep: Path) -> dict[int, float]:
    """The time in seconds before which no schedule of a set ends, by seed, kept in a folder. None for worlds of
    several GPUs or with arrivals, and where the extra `optimum` is not installed."""
    from berth_papers.colocation.bounds import kept_bounds

    if world.gpus != "1x1" or world.arrivals:
        return {}
    found: dict[int, float] = {}
    for seed in seeds:
        jobs, truth = _set(world.workload, world.mode, world.gpus, world.arrivals, seed)
        assert isinstance(truth, ProfiledInterference)
        key = world.workload, seed
        bounds = kept_bounds({key: jobs}, truth, THESIS_GPU, keep / "bounds", 1, None)
        if key in bounds:
            found[seed] = bounds[key].total_ms / 1000
    return found


def _kept(folder: Path, world: World) -> KeptRuns:
    """Where the runs of a world are kept; each world has a folder of its own, or runs would take each other's place."""
    digest = hashlib.sha256(repr(world).encode()).hexdigest()[:12]
    return KeptRuns(folder / f"{world.mode}-{world.workload}-{digest}")


def _task(world: World, policy: str, seed: int) -> Task:
    jobs, interference = _set(world.workload, world.mode, world.gpus, world.arrivals, seed)
    under = Conditions(interference=interference, interference_name=world.mode, knowledge=world.knowledge)
    return Task(jobs, _nodes(world.gpus), policy, seed, under)


@cache
def _nodes(gpus: str) -> tuple[Node, ...]:
    if gpus == "1x1":
        return (Node("titan-xp", gpus=1, gpu_model=THESIS_GPU),)
    return tuple(
        Node(f"node-{at:02d}", gpus=PER_NODE, gpu_model=GPU_MODELS[CARDS[at % len(CARDS)]])
        for at in range(int(gpus) // PER_NODE)
    )


@cache
def _set(
    workload: str, mode: str, gpus: str, arrivals: float, seed: int
) -> tuple[tuple[Job, ...], Interference]:
    """The jobs of a set, and how they slow each other."""
    count = sum(node.gpus for node in _nodes(gpus))
    number = JOBS if count == 1 else JOBS_PER_GPU * count
    if workload == DRAWN:
        profiles = drawn_profiles(seed)
        jobs, interference = drawn_jobs(profiles, number, seed), make_interference(mode, profiles)
    else:
        jobs, interference = workload_jobs(workload, number, seed), make_interference(mode)
    if not arrivals:
        return jobs, interference
    work_ms = np.mean([work_of(job) for job in jobs])
    between_ms = np.random.default_rng([seed, 9]).exponential(work_ms / (count * arrivals), number)
    at_ms = np.cumsum(between_ms).astype(np.int64)
    return tuple(
        replace(job, submit_ms=int(when)) for job, when in zip(jobs, at_ms, strict=True)
    ), interference


def _cell(world: World, task: Task, summary: object) -> Cell:
    from berth.statistics import Summary

    assert isinstance(summary, Summary)
    return Cell(
        world,
        task.policy,
        task.seed,
        summary.makespan_s,
        summary.completion_time_s.mean,
        summary.waiting_time_s.maximum,
        summary.jobs,
        summary.jobs - summary.finished,
        summary.failures.get(Reason.OUT_OF_MEMORY, 0),
    )
