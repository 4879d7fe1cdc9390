"""Jobs that come after others, and deadlines: what the engine does, what the order does, what is counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import SimulationError, TraceError
from berth.experiments.compare import compare
from berth.model import Event, EventKind, Job, Node, Reason
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
