"""What an action earns: the thesis leaves it open, so it is an argument of the environment."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Passed(NamedTuple):
    """What went by in one step, all 0 where no time passed."""

    steps: Any  # float32 (): time, in steps of the horizon
    work_steps: (
        Any  # float32 (): work that was done of all jobs, as run time alone; negative where some was lost
    )
    inverse: (
        Any  # float32 (): sum of 1/T over the jobs that are not finished, T their run time alone in steps
    )


class Reward(Protocol):
    """The reward of one step."""

    def __call__(self, passed: Passed) -> Any:
        """float32 ()."""


def unfinished(passed: Passed) -> Any:
    """−1 a step while any job is unfinished: the return is minus the total time."""
    return -passed.steps


def slowdown(passed: Passed) -> Any:
    """−Σ 1/T over unfinished jobs each step: the return is minus the sum of slowdowns.

    Mao et al., "Resource Management with Deep Reinforcement Learning" (DeepRM), HotNets 2016, section 3.2.
    """
    return -passed.steps * passed.inverse


def saved(passed: Passed) -> Any:
    """The time that sharing has saved: work done, less time gone by.

    This is `unfinished` with the work that is left as its potential (Ng, Harada and Russell, "Policy invariance
    under reward transformations", ICML 1999): what is best undiscounted stays best, and each step is told at once
    what it was good for.
    """
    return passed.work_steps - passed.steps
