"""The settings of `genetic`: what a placement is worth, and how long to look for a better one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from berth.errors import SettingError


@dataclass(frozen=True, slots=True)
class Weights:
    """What each thing that `genetic` looks at is worth, in GPUs."""

    utilisation: float = 1.0
    """What a whole GPU in use is worth; a part of one is worth that part."""
    fragmentation: float = 1.0
    """What a GPU left idle costs where it is of no use to the usual requests, in the measure of `fgd`."""
    waiting: float = 0.02
    """What starting a job is worth for each GPU that it asks for, or in all where that is less than one, and as much
    again for each hour that it has waited."""
    jobs: float = 0.0
    """What starting a job is worth whatever its size. Above 0, eight jobs of one GPU outweigh one of eight."""
    scarcity: float = 1.0
    """What a GPU costs a job that could do without its model, times the part of the model that the usual requests
    naming it would fill; or that could do without a node so large, if those that cannot would fill all of these."""
    interference: float = 0.5
    """What a GPU's time costs that jobs on one GPU take from each other, by the use that their profiles tell."""

    def __post_init__(self) -> None:
        of = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if not (all(0 <= value <= 1e6 for value in of.values()) and sum(of.values()) > 0):
            raise SettingError(
                f"the weights are {', '.join(f'{name} {value:g}' for name, value in of.items())}; expected each from"
                " 0 to 1,000,000 and their sum above 0"
            )


@dataclass(frozen=True, slots=True)
class GeneticSettings:
    """How `genetic` searches. Counted in steps the search is the same on every machine; a budget is not."""

    weights: Weights = field(default_factory=Weights)
    population: int = 8
    """Solutions that are bettered side by side and cross."""
    generations: int = 30
    """The most rounds; after each, solutions cross with another one as it was before."""
    patience: int = 4
    """Rounds without a better solution after which it stops."""
    steps: int = 60
    """Changes that are tried on each solution in one round."""
    ruin: int = 24
    """The most instances that are taken out and put back in one change."""
    crossing: float = 0.1
    """The probability that a change takes over genes of another solution instead."""
    budget_ms: int | None = None
    """Stop after this time with the best so far; None: only when the rounds are over. With a budget that cuts it
    short the result depends on how fast the machine is."""
    window: int = 500
    """Waiting jobs that are decided on at once, the first of the queue that fit somewhere."""
    round_ms: int = 1_000
    """It decides not more often than this; what comes meanwhile waits, and what is given back is idle."""
    typical: int = 64
    """The most usual requests that are looked at to tell what is stranded."""
    threads: int = 2
    """Solutions bettered at the same time; the result does not depend on it."""
    profiles: Mapping[str, float] = field(default_factory=dict)
    """Mean use of a GPU by application, as a fraction; jobs of applications that are not in it do not interfere. By
    default those of the interference model of the run, where it is made from profiles."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("population", 2, 1_000),
            ("generations", 1, 1_000_000),
            ("patience", 1, 1_000_000),
            ("steps", 1, 1_000_000),
            ("ruin", 1, 10_000),
            ("crossing", 0, 1),
            ("budget_ms", 1, 86_400_000),
            ("window", 1, 100_000),
            ("round_ms", 0, 86_400_000),
            ("typical", 1, 10_000),
            ("threads", 1, 256),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise SettingError(f"{name} is {value}; expected from {low:,} to {high:,}")


STEPS_A_LOOK = 8
"""Steps of a search between two looks at the clock, if there is a budget."""


class TimeBudget:
    """Milliseconds from now on, of the clock on the wall; None: as many as it takes.

    The next piece of work is expected to take as long as the last one, or half of what was expected then, whichever
    is longer: on a busy machine a short piece may wait long for the processor, and does so again. Threads may share
    a budget.
    """

    def __init__(self, budget_ms: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.end_s = float("inf") if budget_ms is None else clock() + budget_ms / 1000
        self.reserved_s = 0.0
        """The time that the work after the search takes."""
        self._expected_s = 0.0

    def has_time(self) -> bool:
        """Whether another piece of work is expected to end in time."""
        return self.end_s == float("inf") or self.clock() + self._expected_s + self.reserved_s < self.end_s

    def steps(self, wanted: int) -> int:
        """How many of these steps to do in one piece."""
        return wanted if self.end_s == float("inf") else min(wanted, STEPS_A_LOOK)

    def timed(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do a piece of work and learn from it."""
        begin_s = self.clock()
        result = work(*arguments)
        self._expected_s = max(self.clock() - begin_s, self._expected_s / 2)
        return result

    def reserve(self, pieces: float = 1.0) -> None:
        """Note that what comes after the search takes as long as `pieces` pieces of work like the last."""
        self.reserved_s = pieces * self._expected_s
