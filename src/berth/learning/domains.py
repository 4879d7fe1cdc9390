"""The worlds that a network is trained in: applications, a card, a model of interference, and what is believed of them.

A network that is to hold elsewhere is trained on many worlds drawn at random (Tobin et al., "Domain randomization for
transferring deep neural networks from simulation to the real world", IROS 2017). In a world with errors the network
sees run times, memory and speeds that are wrong, and what its choices cost is found by the true ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from berth.arrays import FloatArray
from berth.gpu_models import GPU_MODELS
from berth.interference import Speeds
from berth.knowledge.noisy import NoisySpeeds
from berth.learning.jobsets import JobSets, Task
from berth.network.catalogue import NEVER_MS
from berth.profiles import Series
from berth.profiles.drawn import APPLICATIONS, INTERVAL_MS, drawn_usage

CARDS = ("TITAN-XP", "T4", "V100", "RTX-3090", "A100-40")
LENGTHS = (0, 0, 8, 15)
"""Jobs of the sets of each world in turn; 0: as many as the given sets have. The short ones are queues as arrivals
leave them at a load of about 1."""
UPPER_TENTH = 1.2816
"""Of a normal distribution: policies leave room for the upper tenth of what memory may be."""


class Errors(NamedTuple):
    """Standard deviations of the logarithm of what is believed over what is true."""

    run: float = 0.1
    memory: float = 0.03
    pair: float = 0.1


class Belief(NamedTuple):
    """What the network is shown."""

    task: Task
    speeds: Speeds
    run: FloatArray  # (A,): believed over true run time of each application


@dataclass(frozen=True, eq=False)
class Domain:
    """One world."""

    task: Task
    speeds: Speeds
    sets: JobSets
    """To train on."""
    validation: JobSets
    """To measure on."""
    belief: Belief | None = None
    """None: all is known as it is."""


def family(given: Sequence[Domain], count: int, errors: Errors, seed: int) -> list[Domain]:
    """`count` worlds for each given one: by turns it and drawn applications on a drawn card, half with errors."""
    found = []
    for which, one in enumerate(given):
        for number in range(count):
            draw = np.random.default_rng([seed, which, number])
            world = _drawn(one, draw) if number % 2 else one
            jobs = LENGTHS[number // 2 % len(LENGTHS)]
            if jobs:
                world = replace(
                    world, sets=_first(world.sets, jobs), validation=_first(world.validation, jobs)
                )
            found.append(replace(world, belief=_belief(world, errors, draw)) if number // 2 % 2 else world)
    return found


def _first(sets: JobSets, jobs: int) -> JobSets:
    return JobSets(sets.application[:, :jobs], sets.work_ms[:, :jobs])


def _belief(world: Domain, errors: Errors, draw: np.random.Generator) -> Belief:
    """Beliefs of a world, drawn."""
    count = len(world.task.series)
    run = np.exp(draw.normal(0, errors.run, count))
    memory = np.exp(draw.normal(0, errors.memory, count) + UPPER_TENTH * errors.memory)
    believed = tuple(
        Series(one.interval_ms, np.rint(one.usage * [1.0, factor, 1.0, 1.0]).astype(np.int32))
        for one, factor in zip(world.task.series, memory, strict=True)
    )
    speeds = NoisySpeeds(world.speeds, errors.pair, int(draw.integers(1 << 31)))
    return Belief(replace(world.task, series=believed), speeds, run)


def _drawn(world: Domain, draw: np.random.Generator) -> Domain:
    """The same kind of world with applications and a card drawn at random."""
    gpu = GPU_MODELS[CARDS[int(draw.integers(len(CARDS)))]]
    applications = tuple(
        Series(INTERVAL_MS, np.rint(drawn_usage(draw) * [1000, gpu.mem_mib, 1000, 1000]).astype(np.int32))
        for _ in range(APPLICATIONS)
    )
    names = tuple(f"drawn-{at}" for at in range(APPLICATIONS))
    task = Task(names, applications, gpu, world.task.horizon, world.task.step_ms)
    return replace(
        world,
        task=task,
        sets=_sets(applications, world.sets, draw),
        validation=_sets(applications, world.validation, draw),
    )


def _sets(applications: Sequence[Series], like: JobSets, draw: np.random.Generator) -> JobSets:
    """As many sets of as many jobs, each job about as long as the profile of its application."""
    application = draw.integers(0, len(applications), like.application.shape).astype(np.int32)
    lengths_ms = np.array([one.run_time_ms for one in applications])
    work_ms = lengths_ms[application] * np.exp(draw.normal(0, 0.2, application.shape))
    return JobSets(application, np.clip(work_ms, 1000, NEVER_MS // 64).astype(np.int32))
