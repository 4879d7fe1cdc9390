"""What a user's jobs usually ask for and do not use: `berth job`'s verdict on each of them, taken together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from berth.history.jobs.job_report import JobReport, RightSize, right_sizes
from berth.model import Record, RecordState


@dataclass(frozen=True, slots=True)
class Habit:
    """One thing that several jobs asked too much of; amounts are medians of those jobs."""

    what: str
    """`time limit`, `memory`, `CPUs` or `GPUs`."""
    unit: str
    jobs: int
    """How many completed attempts asked for much more than they used."""
    of: int
    """Of how many completed attempts."""
    asked: float
    used: float
    enough: float
    """What would have done for three of four of those jobs."""


def habits_of(records: Iterable[Record]) -> tuple[Habit, ...]:
    """Return the habits of these attempts, the most frequent first; unmeasured use gives none."""
    completed = 0
    found: dict[tuple[str, str], list[RightSize]] = {}
    for record in records:
        if record.state is not RecordState.COMPLETED:
            continue
        completed += 1
        for each in right_sizes(JobReport((record,), (), None)):
            found.setdefault((each.what, each.unit), []).append(each)
    judged = [
        Habit(
            what,
            unit,
            len(cases),
            completed,
            median(case.asked for case in cases),
            median(case.used for case in cases),
            sorted(case.enough for case in cases)[(3 * len(cases) - 1) // 4],
        )
        for (what, unit), cases in found.items()
    ]
    # Where what three of four need is what most ask for, there is nothing to advise.
    worth = [habit for habit in judged if habit.enough < habit.asked]
    return tuple(sorted(worth, key=lambda habit: (-habit.jobs, habit.what)))
