"""A training as one says it: which learner, on which jobs, under which interference. Everything else follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from berth.errors import SettingError
from berth.interference import make_speeds, mode_of
from berth.learning.domains import Domain, Errors, family
from berth.learning.jobsets import JobSets, Task, thesis_sets, thesis_task
from berth.learning.learner import Learner, LearnerInputs, TrainedFile
from berth.learning.learners import learners
from berth.learning.training import Trained
from berth.network.combinations import combinations
from berth.network.model_file import Model
from berth.profiles import FIRST_TRAINING_SEED

VALIDATION_SEED = 2_000_000
"""Sets of jobs that say which network is best; neither trained on nor tested on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train."""

    learner: str = "learned"
    workload: str = "all"
    """One of the thesis's, or `all`."""
    interference: tuple[str, ...] = ("mps", "time-sliced")
    """Models of speeds; each episode has one of them."""
    slots: int = 5
    """Waiting jobs that are seen, M."""
    jobs: int = 30
    """Of each set."""
    sets: int = 1000
    """Sets to train on."""
    validation: int = 20
    """Sets to measure on."""
    family: int = 0
    """Worlds to train in under each model of interference: applications and cards drawn at random beside the given
    ones, short queues beside full ones, and errors in what is believed; 0: the given one alone."""

    def __post_init__(self) -> None:
        combinations(self.slots)
        known = learners()
        if self.learner not in known:
            raise SettingError(f"no learner '{self.learner}'; there are {', '.join(known)}")
        if min(self.jobs, self.sets, self.validation, len(self.interference)) < 1:
            raise SettingError(
                "a training needs a job, a set, a set to measure on and a model of interference"
            )
        if self.family < 0 or (self.family and not known[self.learner].families):
            able = " and ".join(name for name, spec in known.items() if spec.families)
            raise SettingError(
                f"a family of {self.family} worlds for {self.learner}; expected 0 or more for {able}, 0 for the other"
                " learners"
            )


@dataclass(frozen=True, eq=False)
class Made:
    """What a plan comes to."""

    plan: Plan
    learner: Learner
    task: Task
    unit_ms: int
    """A unit of the task's times; 1 but for histories of days."""
    measure: Callable[[Any], float]
    """Mean over the sets to measure on, and the models of interference, of total time over that of all jobs in turn."""
    greedy: Callable[[], float] | None
    """The same measure of `greedy`; None for learners that are not shown what it goes by."""


def make(
    plan: Plan,
    *,
    task: Task | None = None,
    sets: tuple[JobSets, JobSets] | None = None,
    start: Model | None = None,
) -> Made:
    """The learner of a plan; by default about the thesis's applications, else about `sets` of a `task`.

    Of given sets the first are trained on and the second measured on. It begins with the network of `start`, by
    default with the one that the learner begins with. Raises SettingError where `start` was shown something else.
    """
    spec = learners()[plan.learner]
    if task is None:
        task = thesis_task()
        training = thesis_sets(task, plan.workload, FIRST_TRAINING_SEED, plan.sets, jobs=plan.jobs)
        validation = thesis_sets(task, plan.workload, VALIDATION_SEED, plan.validation, jobs=plan.jobs)
        unit_ms = 1
    else:
        if sets is None:
            raise SettingError("a task of one's own needs sets of its jobs")
        task, (training, validation), unit_ms = task.counted(*sets)
    if start is not None:
        if spec.shipped is None:
            raise SettingError(f"{plan.learner} learns no network of that kind; it cannot begin with a model")
        if start.demand != spec.shown:
            raise SettingError(
                f"the model to begin with was shown the {start.demand} of jobs; {plan.learner} is shown the"
                f" {spec.shown}"
            )
    speeds = [make_speeds(name) for name in plan.interference]
    domains = [Domain(task, one, training, validation) for one in speeds]
    if any(mode_of(one) == "mig" for one in speeds):
        raise SettingError(
            "no network is trained under mig yet: there memory is not one for all tenants; expected mps, time-sliced or"
            " a model of your own"
        )
    network = None if start is None else start.network
    if plan.family:
        domains = family(domains, plan.family, Errors(), FIRST_TRAINING_SEED)
    making = spec.make(LearnerInputs(domains, plan.slots, spec.shown, network))
    learner = making.learner
    return Made(plan, learner, task, unit_ms, making.worth, making.greedy)


def file_of(made: Made, trained: Trained, workloads: Iterable[str], seed: int) -> bytes:
    """The file that a policy decides by, without JAX; SettingError if no policy decides by what was learned."""
    spec = learners()[made.plan.learner]
    if spec.file is None:
        raise SettingError(f"no policy decides by what {made.plan.learner} learns; expected another learner")
    last = trained.curve[-1] if trained.curve else None
    figures = {
        "total_time_to_one_after_the_other": trained.measured,
        "iteration": float(trained.iteration),
        "decisions": float(last.decisions if last else 0),
        "seed": float(seed),
        "seconds": float(last.seconds if last else 0),
    }
    parts = TrainedFile(
        learner=made.learner,
        network=trained.network,
        task=made.task,
        step_ms=made.task.step_ms * made.unit_ms,
        slots=made.plan.slots,
        shown=spec.shown,
        interference=made.plan.interference,
        workloads=tuple(workloads),
        figures=figures,
        command=command_of(made.plan, seed, trained),
    )
    return spec.file(parts)


def command_of(plan: Plan, seed: int, trained: Trained) -> str:
    """The command that trains the same network, but for a training on a history."""
    parts = ["berth train", f"--learner {plan.learner}", f"--interference {','.join(plan.interference)}"]
    parts += [f"--workload {plan.workload}"] if plan.workload != "all" else []
    parts += [f"--family {plan.family}"] if plan.family else []
    return " ".join([*parts, f"--iterations {len(trained.curve)}", f"--seed {seed}"])
