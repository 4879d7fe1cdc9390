"""The first jobs of the queue that may share, as a pass looks at them."""

from __future__ import annotations

from berth.cluster import Queue
from berth.model import Job
from berth.policies.colocation.forecast import Candidate
from berth.policies.colocation.queue_prefix import Kinds, QueuePrefix

WORK_MS = 1000


def head_of(*jobs: Job, certain: bool = True) -> QueuePrefix:
    """Jobs whose application begins with 'w' do not share."""
    queue = Queue()
    for job in jobs:
        queue.add(job)

    def candidate(job: Job) -> Candidate | None:
        if job.application.startswith("w"):
            return None
        work_us = 1000 * (job.work_ms or int(job.id))
        return Candidate(job.application, work_us, work_us)

    return QueuePrefix(queue, lambda jobs: jobs, candidate, certain=certain)


def job(
    number: int, application: str, *, work_ms: int | None = WORK_MS, patience_ms: int | None = None
) -> Job:
    return Job(f"{number}", 0, work_ms, application=application, patience_ms=patience_ms)


def test_those_that_do_not_wait_are_passed_over_and_others_that_do_not_share_end_it() -> None:
    impatient = [job(at, "w", patience_ms=0) for at in range(5)]
    sharing = [job(5, "a"), job(6, "b"), job(7, "a")]
    head = head_of(*impatient, *sharing, job(8, "w"), job(9, "a"))
    assert head.read(2)
    assert head.jobs == sharing[:1]
    assert head.read(100)
    assert (head.jobs, head.places) == (sharing, [0, 1, 0])
    assert not head.read(1)


def test_jobs_of_no_known_work_are_looked_at_one_by_one() -> None:
    unknown = [job(at, "a", work_ms=None) for at in (1, 2, 1000)]
    head = head_of(*unknown, job(4, "a"))
    head.read(4)
    assert head.places == [0, 1, 2, 2]
    assert [one.work_us for one in head.candidates] == [1000, 2000, 1_000_000]


def test_a_window_holds_the_first_that_may_run_and_are_not_taken() -> None:
    head = head_of(*(job(at, "ab"[at % 2]) for at in range(10)))
    asked: list[str] = []

    def may(job: Job) -> bool:
        asked.append(job.application)
        return job.application == "a"

    kinds = Kinds(may, head.kinds)
    assert head.window(1, 3, {4}, kinds) == ([2, 6, 8], 9)
    assert head.window(9, 3, set(), kinds) == ([], 10)
    assert asked == ["b", "a"]


def test_those_that_were_started_are_left_out() -> None:
    jobs = [job(at, "a") for at in range(4)]
    head = head_of(*jobs)
    head.read(3)
    for gone in (jobs[0], jobs[2]):
        head.queue.remove(gone)
        head.started.add(gone.id)
    head.look()
    assert head.jobs == [jobs[1]]
    assert head.read(9)
    assert head.jobs == [jobs[1], jobs[3]]
