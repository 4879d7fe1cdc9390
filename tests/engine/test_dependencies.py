"""Jobs that come after others, and deadlines: what the engine does, what the order does, what is counted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import SimulationError, TraceError
from berth.experiments.compare import compare
from berth.model import Event, EventKind, Job, Node, Reason, gang_of
from berth.statistics import event_columns, summarise
from berth.traces import read_trace

NODES = (Node("a", 2),)


def told(jobs: list[Job], policy: str = "fifo") -> list[tuple[str, str, int]]:
    events = simulate(jobs, Cluster(NODES), policy)
    return [
        (event.job.id, event.kind.value, event.time_ms)
        for event in events
        if event.kind is not EventKind.SUBMIT
    ]


def test_a_job_starts_when_all_that_it_comes_after_have_finished() -> None:
    jobs = [
        Job("prepare", 0, 10),
        Job("other", 0, 30),
        Job("train", 1, 5, after=("prepare",)),
        Job("report", 2, 1, after=("train", "other")),
        Job("free", 3, 1),  # queued before "train", which is held
        Job("late", 60, 1, after=("prepare",)),
    ]
    assert told(jobs) == [
        ("prepare", "start", 0), ("other", "start", 0), ("prepare", "finish", 10), ("free", "start", 10),
        ("free", "finish", 11), ("train", "start", 11), ("train", "finish", 16), ("other", "finish", 30),
        ("report", "start", 30), ("report", "finish", 31), ("late", "start", 60), ("late", "finish", 61),
    ]  # fmt: skip


def test_what_comes_after_a_job_that_does_not_finish_is_rejected_and_so_on() -> None:
    jobs = [
        Job("limited", 0, 10, time_limit_ms=5),
        Job("next", 1, 1, after=("limited",)),
        Job("last", 2, 1, after=("next",)),
        Job("too-late", 9, 1, after=("last",)),
        Job("huge", 9, 1, gpus=99),
        Job("of-huge", 10, 1, after=("huge",)),
    ]
    events: list[Event] = list(simulate(jobs, Cluster(NODES), "fifo"))
    rejected = {
        event.job.id: (event.time_ms, event.reason) for event in events if event.kind is EventKind.REJECT
    }
    assert rejected == {
        "next": (5, Reason.DEPENDENCY), "last": (5, Reason.DEPENDENCY), "too-late": (9, Reason.DEPENDENCY),
        "huge": (9, Reason.NEVER_FITS), "of-huge": (10, Reason.DEPENDENCY),
    }  # fmt: skip
    assert summarise(event_columns(events), NODES).rejected == 5


def gang(name: str, last_limit_ms: int | None = None, first_limit_ms: int | None = None) -> Job:
    """A gang of tasks 'a' and 'b', of which the first is shorter."""
    return gang_of(
        [Job("a", 0, 10, time_limit_ms=first_limit_ms), Job("b", 0, 20, time_limit_ms=last_limit_ms)],
        name=name,
    )


def fate(name: str, jobs: list[Job]) -> tuple[int, str]:
    """When the job of this name starts, or is rejected and why."""
    events = simulate(jobs, Cluster([Node("a", 3)]), "fifo")
    (found,) = [
        (event.time_ms, str(event.reason or event.kind))
        for event in events
        if event.job.id == name and event.kind in (EventKind.START, EventKind.REJECT)
    ]
    return found


@pytest.mark.parametrize(
    ("name", "after", "start_ms"),
    [("", "a", 20), ("", "b", 20), ("g", "g", 20), ("g", "a", 10), ("g", "b", 20)],
)
def test_a_job_waits_for_a_whole_gang_by_its_name_or_for_one_task_by_its_id(
    name: str, after: str, start_ms: int
) -> None:
    early, late = Job("early", 1, 5, after=(after,)), Job("late", 30, 5, after=(after,))
    assert fate("early", [gang(name), early, late]) == (start_ms, "start")
    assert fate("late", [gang(name), early, late]) == (30, "start")


@pytest.mark.parametrize("after", ["g", "a", "b"])
def test_a_job_waits_for_a_gang_that_itself_waits_or_is_held(after: str) -> None:
    full = Job("full", 0, 100, gpus=3)
    dependent = Job("dependent", 1, 5, after=(after,))
    start_ms = 110 if after == "a" else 120
    assert fate("dependent", [full, gang("g"), dependent]) == (start_ms, "start")
    held = replace(gang("g"), after=("full",))
    assert fate("dependent", [full, held, dependent]) == (start_ms, "start")


@pytest.mark.parametrize("late_ms", [1, 40])
def test_no_job_starts_after_a_gang_of_which_a_task_failed(late_ms: int) -> None:
    after = {name: Job("dependent", late_ms, 5, after=(name,)) for name in ("g", "a", "b")}
    first_fails, last_fails = gang("g", first_limit_ms=5), gang("g", last_limit_ms=15)
    rejected_ms = {1: (5, 15), 40: (40, 40)}[late_ms]
    assert fate("dependent", [first_fails, after["g"]]) == (rejected_ms[0], "dependency")
    assert fate("dependent", [first_fails, after["a"]]) == (rejected_ms[0], "dependency")
    assert fate("dependent", [first_fails, after["b"]]) == (max(20, late_ms), "start")
    assert fate("dependent", [last_fails, after["g"]]) == (rejected_ms[1], "dependency")
    assert fate("dependent", [last_fails, after["b"]]) == (rejected_ms[1], "dependency")


@pytest.mark.parametrize("after", ["g", "a", "b"])
def test_jobs_after_a_gang_that_is_rejected_or_after_one_of_its_tasks_are_rejected_with_it(
    after: str,
) -> None:
    dependent = Job("dependent", 0, 5, after=(after,))
    never_fits = gang_of([Job("a", 0, 10), Job("b", 0, 10, gpus=9)], name="g")
    assert fate("dependent", [never_fits, dependent]) == (0, "dependency")
    impatient = gang_of([Job("a", 0, 10, patience_ms=3), Job("b", 0, 10)], name="g")
    full = Job("full", 0, 100, gpus=3)
    assert fate("dependent", [full, impatient, dependent]) == (3, "dependency")


@pytest.mark.parametrize("after", ["g", "a", "b"])
def test_a_gang_that_would_wait_for_itself_is_refused(after: str) -> None:
    with pytest.raises(SimulationError, match=f"comes after job '{after}', which was not submitted before"):
        told([replace(gang("g"), after=(after,))])


def test_a_circle_of_jobs_is_refused_in_one_line(tmp_path: Path) -> None:
    circle = [Job("a", 0, 1, after=("b",)), Job("b", 0, 1, after=("a",))]
    with pytest.raises(
        SimulationError, match="job 'a' comes after job 'b', which was not submitted before it; a job"
    ):
        told(circle)
    (tmp_path / "t.csv").write_text("id,submit_ms,work_ms,after\na,0,1,\nb,0,1,a|b\n")
    told_of_itself = "line 3, column 'after': 'a|b'; expected ids of other jobs: 'b' would wait for itself"
    with pytest.raises(TraceError, match=re.escape(told_of_itself)):
        list(read_trace(str(tmp_path / "t.csv")).jobs())


def test_deadline_first_misses_fewer_deadlines_and_the_table_counts_them(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "id,submit_ms,work_ms,gpus,deadline_ms\nlong,0,100000,2,900000\nslack,1,100000,2,900000\n"
        "urgent,2,100000,2,200000\nnone,3,1000,2,\n"
    )
    found = compare(tmp_path / "t.csv", ["fifo", "deadline-first"], cluster=NODES)
    assert [run.summary.deadlines_missed_pct for run in found.runs] == [pytest.approx(100 / 3), 0.0]
    plain = compare([Job("a", 0, 1)], "fifo", cluster=NODES)
    assert plain.runs[0].summary.deadlines_missed_pct is None


def test_a_job_without_a_deadline_comes_last_and_with_it_those_that_come_after_it() -> None:
    """So that a pipeline meets its deadline only if its first job has one too."""
    other = Job("other", 0, 10, gpus=2, deadline_ms=100)
    late = Job("train", 0, 10, gpus=2, deadline_ms=20, after=("prepare",))
    missed = {
        within_ms: compare(
            [Job("prepare", 0, 5, gpus=2, deadline_ms=within_ms), other, late],
            "deadline-first",
            cluster=NODES,
        )
        .runs[0]
        .summary.deadlines_missed_pct
        for within_ms in (None, 10)
    }
    assert missed == {None: 50.0, 10: 0.0}
