"""The queue keeps its order whatever leaves it, also while somebody iterates."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from berth.cluster import Queue
from berth.model import Job
from berth.policies.sort_keys import as_queued


def work(job: Job) -> int:
    return job.work_ms


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=300))
def test_orders_are_those_of_a_plain_list(steps: list[tuple[int, bool]]) -> None:
    queue = Queue()
    plain: list[Job] = []
    for number, (length, leaves) in enumerate(steps):
        if leaves and plain:
            queue.remove(plain.pop(length % len(plain)))
        else:
            job = Job(str(number), 0, length)
            queue.add(job)
            plain.append(job)
        if number % 50 == 0:
            assert list(queue.by(work)) == sorted(plain, key=work)
            assert {lane: len(jobs) for lane, jobs in queue.lanes(work, as_queued).items()} == Counter(
                map(work, plain)
            )
    assert list(queue) == plain
    assert list(queue.by(work)) == sorted(plain, key=work)
    assert {lane: len(jobs) for lane, jobs in queue.lanes(work, as_queued).items()} == Counter(
        map(work, plain)
    )
    assert len(queue) == len(plain)


@given(st.integers(1, 300), st.sets(st.integers(0, 299)), st.integers(0, 5))
def test_an_iteration_goes_on_behind_jobs_that_it_has_yielded(size: int, leave: set[int], again: int) -> None:
    for by in (None, work):
        queue = Queue()
        jobs = [Job(str(number), 0, number % 7) for number in range(size)]
        for job in jobs:
            queue.add(job)
        seen = []
        back = again
        for job in queue if by is None else queue.by(by):
            seen.append(job.id)
            if job in jobs and int(job.id) in leave:
                queue.remove(job)
                if back:  # an eviction queues somebody else meanwhile
                    back -= 1
                    queue.add(Job(f"again{back}", 0, 99))
        expected = jobs if by is None else sorted(jobs, key=work)
        assert [name for name in seen if not name.startswith("again")] == [job.id for job in expected]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["add", "insert", "leave"])), max_size=150))
def test_inserted_jobs_have_their_places(steps: list[tuple[int, str]]) -> None:
    queue = Queue()
    plain: list[Job] = []
    for number, (at, what) in enumerate(steps):
        job = Job(str(number), 0, at)
        if what == "leave" and plain:
            queue.remove(plain.pop(at % len(plain)))
        elif what == "insert" and plain:
            place = at % len(plain)
            assert queue.insert(job, plain[place])
            plain.insert(place, job)
        else:
            queue.add(job)
            plain.append(job)
        assert queue.first() is (plain[0] if plain else None)
        if number % 20 == 0:
            assert list(queue.by(work)) == sorted(plain, key=work)
    assert list(queue) == plain
    assert list(queue.by(work)) == sorted(plain, key=work)


def test_many_are_inserted_before_the_same_job_and_an_iteration_goes_on() -> None:
    queue = Queue()
    jobs = [Job(str(number), 0, 1) for number in range(3)]
    for job in jobs:
        queue.add(job)
    seen = []
    for job in queue:
        seen.append(job.id)
        if job is jobs[0]:
            for number in range(200):
                assert queue.insert(Job(f"late{number}", 0, 1), jobs[2])
    late = [f"late{number}" for number in range(200)]
    assert seen == ["0", "1", *late, "2"]
    assert not queue.insert(Job("late0", 0, 1), jobs[2])
    assert not queue.insert(Job("another", 0, 1), Job("2", 0, 1))


def test_a_job_knows_whether_it_waits() -> None:
    queue = Queue()
    job = Job("a", 0, 1)
    queue.add(job)
    assert (job in queue, Job("b", 0, 1) in queue, "a" in queue) == (True, False, False)
