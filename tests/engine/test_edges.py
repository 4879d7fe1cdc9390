"""What simulations do at their edges: errors come after what happened before them, no instant is left unfinished."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import BerthError, SimulationError
from berth.knowledge import Oracle
from berth.model import Event, Job, Node, Reason


def run_of(jobs: list[Job], cluster: Cluster, policy: str = "fifo+first-fit") -> tuple[list[Event], str]:
    """The events, and the error that ended them."""
    events: list[Event] = []
    try:
        events.extend(simulate(jobs, cluster, policy, knowledge=Oracle(jobs)))
    except BerthError as error:
        return events, f"{type(error).__name__}: {error}"
    return events, ""


def lines(events: list[Event]) -> list[str]:
    return [f"{event.time_ms} {event.kind} {event.job.id}" for event in events]


def test_an_interruption_while_jobs_are_drawn_ends_the_run_after_what_had_happened() -> None:
    """As Ctrl-C does."""
    jobs = [Job(f"j{number}", number, 3) for number in range(5000)]

    def given_until_interrupted() -> Iterator[Job]:
        for job in jobs:
            if job.submit_ms == 4000:
                signal.raise_signal(signal.SIGINT)
            yield job

    cluster, seen = Cluster([Node("a", gpus=4)]), list[Event]()
    events = simulate(given_until_interrupted(), cluster, "fifo+first-fit", knowledge=Oracle(()))
    with pytest.raises(KeyboardInterrupt):
        seen.extend(events)
    assert len(seen) > 3 * 3900
    assert seen == run_of(jobs, cluster)[0][: len(seen)]


def test_what_became_of_jobs_counts_for_those_that_come_after_them() -> None:
    """One had finished, one was ended at its limit, one never fitted, one still runs, one waits."""
    before = [
        Job("done", 0, 2),
        Job("late", 0, 9, time_limit_ms=3),
        Job("large", 0, 1, gpus=9),
        Job("runs", 6, 50),
        Job("waits", 7, 1),
    ]
    jobs = [*before, *(Job(f"after {job.id}", 20, 1, after=(job.id,)) for job in before)]
    events, error = run_of(jobs, Cluster([Node("a", gpus=1)]))
    assert not error
    refused = {event.job.id for event in events if event.reason is Reason.DEPENDENCY}
    assert refused == {"after late", "after large"}


def test_a_job_without_patience_has_until_all_that_end_at_its_instant_have_ended() -> None:
    """The room of a job of no length is free again at once, and so on; then it leaves."""
    jobs = [Job(f"short{number}", 5, 0, patience_ms=0) for number in range(3)]
    jobs += [Job("long", 5, 9, patience_ms=0), Job("leaves", 5, 1, patience_ms=0)]
    events, error = run_of(jobs, Cluster([Node("a", gpus=1)]))
    assert not error
    assert [event.job.id for event in events if event.reason is Reason.PATIENCE] == ["leaves"]


@pytest.mark.parametrize(
    ("bad", "told_of_it"),
    [
        (Job("a", 5, 1), "two jobs have the id 'a'"),
        (Job("c", 3, 1), "give the jobs in order of submission"),
        (Job("c", 5, None), "a simulation needs a whole number"),
        (Job("c", 5, 1, gpus=-1), "asks for -1 GPUs"),
        (Job("c", 5, 1, patience_ms=-1), "job 'c' has a patience of -1 ms; expected 0 or more"),
    ],
)
def test_what_happened_before_a_bad_job_comes_before_its_error(bad: Job, told_of_it: str) -> None:
    events, error = run_of([Job("a", 0, 2), Job("b", 4, 9), bad], Cluster([Node("a", gpus=1)]))
    assert told_of_it in error
    assert lines(events)[:4] == ["0 submit a", "0 start a", "2 finish a", "4 submit b"]


def test_an_error_of_who_gives_the_jobs_comes_after_what_happened_before_it() -> None:
    def given() -> Iterator[Job]:
        yield Job("a", 0, 2)
        yield Job("b", 4, 9)
        raise SimulationError("the file ends here")

    events: list[Event] = []
    with pytest.raises(SimulationError, match="the file ends here"):
        events.extend(simulate(given(), Cluster([Node("a", gpus=1)]), "fifo+first-fit"))
    assert lines(events) == ["0 submit a", "0 start a", "2 finish a", "4 submit b"]
