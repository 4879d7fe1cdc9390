"""What the runs of a sweep warn of is told once, with a count."""

from __future__ import annotations

import pytest

from berth.experiments.compare.conditions import Conditions
from berth.experiments.compare.parallel import run_all
from berth.experiments.compare.sweep import Task
from berth.model import Job, Node


def sweep(applications: str, seeds: int) -> list[Task]:
    """Runs of jobs whose run time is not known, each of the application with the next letter."""
    jobs = tuple(Job(str(at), 0, 5000, application=name, user="ann") for at, name in enumerate(applications))
    under = Conditions(knowledge="history?begin=empty")
    return [Task(jobs, (Node("node", gpus=8),), "sjf+first-fit", seed, under) for seed in range(seeds)]


@pytest.mark.parametrize(
    ("applications", "seeds", "counts"),
    [("abcab", 3, " (2 more like it, in 3 of 3 runs)"), ("aaa", 2, " (in 2 of 2 runs)"), ("aaa", 1, "")],
)
def test_a_warning_of_each_run_is_logged_once_a_sweep(
    applications: str, seeds: int, counts: str, caplog: pytest.LogCaptureFixture
) -> None:
    list(run_all(sweep(applications, seeds), 1, None))
    told = "the run time of 'a' is unknown, and it has no time limit: 24 h are assumed"
    assert [record.getMessage() for record in caplog.records] == [f"{told}{counts}"]


def test_an_iterator_that_is_closed_tells_what_was_warned_of_until_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = run_all(sweep("ab", 3), 1, None)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert [record.getMessage().partition(" (")[2] for record in caplog.records] == [
        "1 more like it, in 1 of 3 runs)"
    ]
