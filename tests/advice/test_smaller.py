"""What a user's jobs usually ask for and do not use, and what asking for less would have changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from berth.advice.habits import Habit, habits_of
from berth.advice.smaller import Part, parts_enough, smaller
from berth.advice.workload import Workload
from berth.model import Job, Node, Record, RecordState, Share

HOUR_MS = 3_600_000


def record(at: int, run_h: float, **values: object) -> Record:
    told = {"state": RecordState.COMPLETED, "time_limit_ms": 48 * HOUR_MS} | values
    return Record(
        str(at), 1, "ann", "app", "", 0, 0, 0, round(run_h * HOUR_MS),
        gpus=1, share=Share(1000, 0), cpu_milli=1000, mem_mib=1000, nodes=("n",), gpu_model="", work_ms=None, **told,
    )  # type: ignore[arg-type]  # fmt: skip


def test_a_habit_is_what_most_jobs_ask_too_much_of() -> None:
    ran = [record(at, hours) for at, hours in enumerate((1, 1, 2, 4))]
    failed = record(9, 47, state=RecordState.FAILED)
    assert habits_of([*ran, failed]) == (Habit("time limit", "min", 4, 4, 2880.0, 90.0, 144),)


def test_what_nobody_measured_is_no_habit() -> None:
    assert habits_of([record(0, 1, time_limit_ms=None)]) == ()


def test_what_one_job_needs_all_of_is_advised_to_nobody() -> None:
    assert habits_of([record(0, 47)]) == ()


@pytest.fixture
def crowded() -> Workload:
    """Eight jobs of one hour of each of two users come at once to one GPU; Ann's use a fifth of it."""
    jobs = [
        Job(f"{user}{at}", at, HOUR_MS, user=user, application="app", gpus=1, time_limit_ms=2 * HOUR_MS)
        for at in range(8)
        for user in ("ann", "bob")
    ]
    return Workload(
        tuple(jobs),
        (Node("n", gpus=1),),
        frozenset(job.id for job in jobs),
        tuple(float(at * 3600) for at in range(16)),
        {job.id: (0.2, 0.1) for job in jobs if job.user == "ann"},
    )


def test_smaller_requests_shorten_a_users_wait(crowded: Workload) -> None:
    found = smaller(crowded, "ann")
    assert found is not None
    assert (found.parts, found.replayed) == ((Part("app", 8, 0.2, 250),), 16)
    assert found.wait_then_s < found.wait_now_s - 3600


def test_whoever_was_not_measured_gets_no_advice(crowded: Workload) -> None:
    assert parts_enough(crowded, "bob") == ()
    assert smaller(crowded, "bob") is None


def test_whose_memory_was_not_measured_gets_no_advice(crowded: Workload) -> None:
    unknown = replace(crowded, use={name: (use, None) for name, (use, _) in crowded.use.items()})
    assert parts_enough(unknown, "ann") == ()
