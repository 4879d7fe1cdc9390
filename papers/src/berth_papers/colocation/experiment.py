"""Chapter V of the thesis: which jobs to start together on one GPU, each policy on the same sets of 30 jobs.

Oh 2019; see `colocation_thesis` for what it reports. The runs go through the sweep and are kept, so that the
experiment can be interrupted and continued.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from berth.errors import SettingError
from berth.experiments.compare.conditions import Conditions
from berth.experiments.compare.kept import KeptRuns, interference_digest
from berth.experiments.compare.kept_file import kept_path
from berth.experiments.compare.parallel import run_all
from berth.experiments.compare.sweep import Task
from berth.interference import MODES, Speeds, make_interference
from berth.interference.profiled import ProfiledInterference
from berth.knowledge import check_knowledge, make_knowledge
from berth.model import Job, Node
from berth.policies import Progress as RunProgress
from berth.policies import make_policy
from berth.policies.colocation.learned import shipped_for
from berth.profiles import THESIS_GPU, WORKLOADS, workload_jobs
from berth_papers.baselines.deeprm import package_of
from berth_papers.bounds import TimeBound
from berth_papers.colocation.bounds import kept_bounds
from berth_papers.colocation.outcome import Outcome, outcome_of, read_stays
from berth_papers.colocation.thesis import check_seeds

SJF = "sjf+first-fit"
UNTRAINED = "learned?model=untrained"
POLICIES = (SJF, "tetris-sharing", "deeprm-max", "deeprm-mean", "greedy", "learned", UNTRAINED)
"""SJF asks for whole GPUs, so that each job runs alone."""
MODELS = MODES
LEARNED = ("learned", "deeprm-max", "deeprm-mean")
"""Their runs are kept apart for each set of models that ships."""
JOBS = 30
FRONTIER_WORKLOAD = "random"
WEIGHTS = (5, 10, 20, 40, 80, 160)
"""What a job that is not slowed is worth, in seconds of total time, along the frontier."""

Progress = Callable[[float, float, str], None]
"""Called with how much is done, how much there is, runs and bounds alike, and which of them is at hand."""

NODE = (Node("titan-xp", gpus=1, gpu_model=THESIS_GPU),)


@dataclass(frozen=True, slots=True, eq=False)
class Colocation:
    """Everything that was measured."""

    interference: str
    workloads: tuple[str, ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    outcomes: tuple[Outcome, ...]
    bounds: Mapping[tuple[str, int], TimeBound]
    """By workload and seed; empty without the extra `optimum`."""
    frontier: tuple[Outcome, ...]
    """`learned` with each of `WEIGHTS`, on `random`."""
    knowledge: str = "oracle"
    """What policies believed of jobs."""

    def of(self, workload: str, policy: str) -> list[Outcome]:
        """The outcomes of a policy on a workload, in the order of the seeds."""
        found = {one.seed: one for one in self.outcomes if (one.workload, one.policy) == (workload, policy)}
        return [found[seed] for seed in self.seeds]


def measure_colocation(
    workloads: Sequence[str] = tuple(WORKLOADS),
    *,
    interference: str = "mps",
    knowledge: str = "oracle",
    policies: Sequence[str] = POLICIES,
    seeds: Sequence[int] = tuple(range(30)),
    jobs: int = JOBS,
    processes: int = 1,
    keep: Path | None = None,
    progress: Progress | None = None,
) -> Colocation:
    """Run every policy on every set of every workload, all on one GPU of the thesis.

    `interference` is what is true, and `knowledge` what policies believe of it; the bounds are of what is true. With
    `keep` finished runs stay in that folder and are not run again. Raises SettingError for workloads that the thesis
    does not have, for seeds that models are trained on, and for knowledge that there is not. `sjf` is `SJF`,
    whose placement does not matter.
    """
    policies = tuple(dict.fromkeys(SJF if name == "sjf" else name for name in policies))
    if unknown := [name for name in workloads if name not in WORKLOADS]:
        raise SettingError(f"no workload '{unknown[0]}'; there are {', '.join(WORKLOADS)}, and all")
    if not workloads or not policies or not seeds:
        raise SettingError("the experiment needs at least one workload, one policy and one seed")
    check_seeds(seeds)
    check_knowledge(knowledge)
    model = make_interference(interference)
    if not isinstance(model, ProfiledInterference):
        raise SettingError(f"interference '{interference}' knows no profiles; there are {', '.join(MODELS)}")
    for name in policies:
        make_policy(name)
    points = tuple(f"learned?unslowed={weight}" for weight in WEIGHTS) if "learned" in policies else ()
    plan = [(workload, policy, seed) for workload in workloads for policy in policies for seed in seeds]
    if FRONTIER_WORKLOAD in workloads:
        plan += [(FRONTIER_WORKLOAD, policy, seed) for policy in points for seed in seeds]
    sets = {(workload, seed): workload_jobs(workload, jobs, seed) for workload in workloads for seed in seeds}
    total = len(plan) + len(sets)
    with _folder(keep) as folder:
        kept = folder / interference_digest(model)[:12]  # the name may be a path, which would lead elsewhere
        outcomes = [
            outcome_of(
                workload,
                policy,
                seed,
                read_stays(path, sets[workload, seed]),
                model.profiles,
                model,
                THESIS_GPU,
            )
            for workload, policy, seed, path in _runs(
                plan,
                sets,
                Conditions(interference=model, knowledge=knowledge),
                kept,
                processes,
                progress and (lambda done, _: progress(done, total, "runs")),
            )
        ]
        bounds = kept_bounds(
            sets,
            model,
            THESIS_GPU,
            kept,
            processes,
            progress and (lambda done, _: progress(len(plan) + done, total, "lower bounds")),
        )
    return Colocation(
        interference,
        tuple(workloads),
        tuple(policies),
        tuple(seeds),
        tuple(one for one in outcomes if one.policy not in points),
        bounds,
        tuple(one for one in outcomes if one.policy in points),
        knowledge,
    )


def _runs(
    plan: Sequence[tuple[str, str, int]],
    sets: Mapping[tuple[str, int], tuple[Job, ...]],
    under: Conditions,
    folder: Path,
    processes: int,
    progress: RunProgress | None,
) -> Iterator[tuple[str, str, int, Path]]:
    """Where the events of each run of the plan are, those run first that are not kept yet."""
    speeds = make_knowledge(under.knowledge, (), under.interference).speeds
    if (
        under.knowledge != "oracle"
    ):  # apart: the events beside a kept run would not tell of what knowledge they are
        folder /= f"knowledge-{hashlib.sha256(under.knowledge.encode()).hexdigest()[:12]}"
    waiting: list[Task] = []
    places: dict[tuple[str, str, int], tuple[KeptRuns, Task]] = {}
    for workload, policy, seed in plan:
        kept = KeptRuns(_place(folder, workload, policy, speeds))
        events = kept_path(kept.folder, policy, seed).with_suffix(".events")
        task = Task(sets[workload, seed], NODE, policy, seed, under, events=str(events))
        places[workload, policy, seed] = kept, task
        if kept.load(replace(task, events=None)) is None or not events.is_file():
            events.parent.mkdir(parents=True, exist_ok=True)
            waiting.append(task)
    done = len(plan) - len(waiting)
    of = {task.events: key for key, (_, task) in places.items()}
    for workload in dict.fromkeys(of[task.events][0] for task in waiting):
        here = [task for task in waiting if of[task.events][0] == workload]
        mine = {(task.policy, task.seed): task for task in here}
        part = None if progress is None else _shifted(progress, done, len(plan))
        for result in run_all(here, processes, part):
            task = mine[result.run.policy, result.run.seed]
            places[of[task.events]][0].save(task, result)
            done += 1
    for key, (_, task) in places.items():
        yield *key, Path(str(task.events))


def _shifted(progress: RunProgress, before: float, total: float) -> Callable[[float, float], None]:
    return lambda done, _: progress(before + done, total)


def _place(folder: Path, workload: str, policy: str, speeds: Speeds) -> Path:
    """Where the runs of a policy are kept; those of a policy that learned, for each model that ships under its name.

    `speeds` are those that the policy believes.
    """
    name = policy.partition("?")[0]
    package = package_of(name)
    model = files(package) / "models" / f"{shipped_for(name, speeds, package)}.npz"
    if name not in LEARNED or not model.is_file():
        return folder / workload
    return folder / workload / f"model-{hashlib.sha256(model.read_bytes()).hexdigest()[:12]}"


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="berth-colocation-") as folder:
        yield Path(folder)
