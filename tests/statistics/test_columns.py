from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import SimulationError
from berth.events import KINDS, REASONS, EventBatch
from berth.model import Event, EventKind, Job
from berth.statistics import event_columns
from berth.statistics.columns import RUNNING
from berth.traces import Trace, read_nodes
from berth.traces.job_table import numbers_of
from tests.statistics.histories import event, golden

A, B = Job("a", 0, 5), Job("b", 1, 5)


def test_columns_tell_each_try_with_its_queueing_start_end_and_slots() -> None:
    tries = event_columns(golden().events).attempts
    told = [
        (int(job), int(queued), int(start), int(end), int(gpus), int(milli))
        for job, queued, start, end, gpus, milli in zip(
            tries.job, tries.queued_ms, tries.start_ms, tries.end_ms, tries.gpus, tries.milli, strict=True
        )
    ]
    assert told == [
        (0, 0, 0, 40_000, 2, 1000),
        (1, 10_000, 10_000, 60_000, 1, 500),
        (2, 20_000, 20_000, 30_000, 1, 1000),
        (3, 30_000, 40_000, 60_000, 1, 1000),
        (2, 30_000, 50_000, 80_000, 1, 1000),
        (3, 60_000, 70_000, 100_000, 1, 1000),
    ]
    assert tries.slot_offsets.tolist() == [0, 2, 3, 4, 5, 6, 7]
    assert list(zip(tries.slot_node.tolist(), tries.slot_index.tolist(), strict=True)) == [
        (0, 0), (0, 1), (1, 0), (1, 1), (0, 0), (1, 1), (0, 0)
    ]  # fmt: skip


def test_columns_number_jobs_in_order_of_submission() -> None:
    columns = event_columns(golden().events)
    assert list(columns.job_ids) == ["two", "half", "lost", "kept", "never"]
    assert columns.work_ms.tolist() == [40_000, 40_000, 30_000, 50_000, 1000]
    assert columns.keeps_work.tolist() == [False, False, False, True, False]


@pytest.mark.parametrize("events", [golden().events, ()])
def test_a_time_is_numpys_int64(events: tuple[Event, ...]) -> None:
    columns = event_columns(events)
    assert {columns.time_ms.dtype.type, columns.submit_ms.dtype.type} == {np.int64}


def test_a_try_without_an_end_runs_until_the_last_event() -> None:
    tries = event_columns(
        [event(0, EventKind.SUBMIT, A), event(0, EventKind.START, A, (0, 0)), event(7, EventKind.SUBMIT, B)]
    ).attempts
    assert (tries.end_ms.tolist(), tries.end_event.tolist()) == ([7], [RUNNING])


def test_no_events_are_columns_too() -> None:
    columns = event_columns(iter(()))
    assert (len(columns.time_ms), len(columns.attempts.job), columns.begin_ms, columns.end_ms) == (0, 0, 0, 0)


def test_events_may_come_as_an_iterator() -> None:
    events = golden().events
    assert np.array_equal(event_columns(iter(events)).time_ms, event_columns(events).time_ms)


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        (
            [event(5, EventKind.SUBMIT, A), event(3, EventKind.SUBMIT, B)],
            "event 1 is at 3 ms, before event 0 at 5 ms",
        ),
        ([event(0, EventKind.START, A, (0, 0))], "job 'a' has events but no submit of its first try"),
        ([event(0, EventKind.SUBMIT, A), event(0, EventKind.SUBMIT, A)], "job 'a' is submitted"),
        (
            [event(0, EventKind.SUBMIT, A), event(1, EventKind.FINISH, A, (0, 0))],
            "job 'a' has 'finish' after 'submit' at 1 ms (event 1)",
        ),
        (
            [event(0, EventKind.SUBMIT, A), event(0, EventKind.START, A), event(1, EventKind.START, A)],
            "job 'a' has 'start' after 'start' at 1 ms (event 2)",
        ),
    ],
)
def test_events_that_cannot_be_are_refused_by_name(events: list, complaint: str) -> None:
    with pytest.raises(SimulationError) as refusal:
        event_columns(events)
    assert complaint in str(refusal.value)


class InBatches:
    """The events of a run of first attempts on whole GPUs, some of them as arrays."""

    def __init__(self, events: list[Event], batched: range) -> None:
        self.events, self.batched = events, batched
        self.jobs = [event.job for event in events if event.kind is EventKind.SUBMIT]

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def batches(self) -> Iterator[list[Event] | EventBatch]:
        first, last = self.batched.start, self.batched.stop
        yield self.events[:first]
        part = self.events[first:last]
        starts = [event for event in part if event.kind is EventKind.START]
        slots = np.array([slot for event in starts for slot in event.slots], np.int32).reshape(-1, 2)
        rows = {job.id: row for row, job in enumerate(self.jobs)}
        yield EventBatch(
            jobs=self.jobs,
            numbers=numbers_of(self.jobs),
            time_ms=np.array([event.time_ms for event in part], np.int64),
            kind=np.array([KINDS.index(event.kind) for event in part], np.int8),
            row=np.array([rows[event.job.id] for event in part], np.int32),
            reason=np.array([REASONS.index(event.reason) for event in part], np.int8),
            slot_offsets=np.cumsum([0, *(len(event.slots) for event in starts)]),
            slot_node=slots[:, 0],
            slot_index=slots[:, 1],
        )
        yield from ([event] for event in self.events[last:])


def test_events_in_batches_are_the_same_columns_as_one_by_one() -> None:
    trace = Trace("synthetic:pai-like?jobs=60&seed=3", "synthetic", None)
    jobs = [replace(job, deadline_ms=at * 1000 if at % 2 else None) for at, job in enumerate(trace.jobs())]
    events = list(simulate(jobs, Cluster(read_nodes("4x4:T4,4x4:P100")), "fifo+first-fit"))
    assert {event.attempt for event in events} == {1}
    expected = event_columns(events)
    assert expected.last_kind.any()
    for batched in (range(len(events)), range(0), range(20, 90), range(0, 90), range(20, len(events))):
        arrived: list[int] = []
        assert_equal_columns(event_columns(InBatches(events, batched), arrived.append), expected)
        assert (arrived == sorted(arrived), arrived[-1]) == (True, 60)


def assert_equal_columns(found: Any, expected: Any) -> None:
    for field in fields(expected):
        value, other = getattr(found, field.name), getattr(expected, field.name)
        if is_dataclass(other):
            assert_equal_columns(value, other)
        else:
            assert (field.name, [*value]) == (field.name, [*other])
            assert getattr(value, "dtype", None) == getattr(other, "dtype", None)


def test_what_cannot_be_is_refused_in_batches_too() -> None:
    start = event(0, EventKind.START, A, (0, 0))
    events = [event(0, EventKind.SUBMIT, A), start, start]
    with pytest.raises(SimulationError, match="job 'a' has 'start' after 'start'"):
        event_columns(InBatches(events, range(3)))
    with pytest.raises(SimulationError, match="event 1 is at 3 ms, before event 0 at 5 ms"):
        event_columns(InBatches([event(5, EventKind.SUBMIT, A), event(3, EventKind.SUBMIT, B)], range(2)))
    with pytest.raises(SimulationError, match="job 'a' is submitted for its first try more than once"):
        event_columns(InBatches([event(0, EventKind.SUBMIT, A), event(0, EventKind.SUBMIT, A)], range(2)))
