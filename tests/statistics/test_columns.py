import numpy as np
import pytest

from berth.errors import SimulationError
from berth.model import EventKind, Job
from berth.statistics import event_columns
from berth.statistics.columns import RUNNING
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
