"""What the scheduler believes of runs, and what a knowledge is told and raises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import pytest

from berth.cluster import Cluster, Queue
from berth.errors import KnowledgeError, PolicyError
from berth.interference import make_interference
from berth.knowledge import Oracle, Spread, User
from berth.model import FOREVER_MS, GpuSlot, Job, Node, Placement, Record, RecordState
from berth.policies import Decision, Setting, make_policy
from berth.scheduler import Scheduler
from tests.scheduler.examples import ONE_GPU, live, scheduler, started


@pytest.mark.parametrize("expected", [0, -5, 2**70])
def test_an_estimate_that_makes_no_sense_counts_as_none(expected: int) -> None:
    class Absurd(User):
        def run_ms(self, job: Job) -> Spread | None:
            return Spread.exactly(expected)

    one = Scheduler(Cluster(ONE_GPU), make_policy("easy+sjf-expected", Setting(knowledge=Absurd())), Absurd())
    one.submit(live("a"))
    assert started(one) == ["a"]
    assert one.cluster.running["a"].end_ms() == 2**60
    one.submit(live("b"))
    assert started(one, 5) == []
    one.ended("a", RecordState.COMPLETED, 10)
    assert started(one, 10) == ["b"]


def test_a_job_that_outlives_its_expectation_is_expected_anew() -> None:
    one = scheduler()
    one.submit(live("a", estimate_ms=100))
    assert started(one) == ["a"]
    assert one.cluster.running["a"].end_ms() == 100
    one.submit(live("b"))
    list(one.decide(150))
    assert one.cluster.running["a"].end_ms() == 300  # twice as long as it has run


def test_knowledge_is_told_what_happened() -> None:
    told: list[Record] = []

    class Listens(User):
        def observe(self, record: Record) -> None:
            told.append(record)

    one = Scheduler(Cluster(ONE_GPU), make_policy("fifo+first-fit"), Listens())
    one.submit(replace(live("a"), submit_ms=3))
    assert started(one, 4) == ["a"]
    one.ended("a", RecordState.COMPLETED, 9)
    assert [(one.job_id, one.start_ms, one.end_ms, one.nodes, one.state, one.work_ms) for one in told] == [
        ("a", 4, 9, ("a",), RecordState.COMPLETED, None)
    ]


class Expects(User):
    """Expects what it is told to, ms; None: it knows nothing."""

    expected_ms: int | None = 100_000

    def run_ms(self, job: Job) -> Spread | None:
        return None if self.expected_ms is None else Spread(self.expected_ms, 1, 2 * self.expected_ms)


@pytest.mark.parametrize(
    ("first_ms", "then_ms", "left_ms"),
    [
        (100_000, 100_000, 40_000),
        (100_000, 300_000, 240_000),  # it is believed to be longer: more is left, and as much is done
        (300_000, 100_000, 40_000),
        (None, 100_000, 40_000),  # nothing was known at first
        (100_000, 50_000, 30_000),  # it has done more than all: half as much again
        (50_000, 60_000, 30_000),  # it had outlived its expectation already
        (100_000, None, None),
    ],
)
def test_kept_work_stays_done_whatever_is_believed_of_the_run_time_later(
    first_ms: int | None, then_ms: int | None, left_ms: int | None
) -> None:
    knowledge = Expects()
    one = Scheduler(Cluster(ONE_GPU), make_policy("fifo+first-fit"), knowledge)
    one.submit(live("a", keeps_work=True))
    knowledge.expected_ms = first_ms
    assert started(one) == ["a"]
    one.node_lost("a", 60_000)
    knowledge.expected_ms = then_ms
    one.node_back("a")
    assert started(one, 70_000) == ["a"]
    run = one.cluster.running["a"]
    assert run.work_us - run.left_us == 60_000_000
    assert run.end_ms() == (FOREVER_MS if left_ms is None else 70_000 + left_ms)
    one.failed_to_start("a", 71_000)  # it has done nothing more
    assert started(one, 72_000) == ["a"]
    again = one.cluster.running["a"]
    assert again.work_us - again.left_us == 60_000_000
    assert again.left_us > 0


def test_work_that_is_not_kept_is_done_anew() -> None:
    one = Scheduler(Cluster(ONE_GPU), make_policy("fifo+first-fit"), Expects())
    one.submit(live("a"))
    assert started(one) == ["a"]
    one.node_lost("a", 60_000)
    one.node_back("a")
    assert started(one, 70_000) == ["a"]
    assert one.cluster.running["a"].end_ms() == 170_000


def test_the_caller_says_what_is_believed() -> None:
    with pytest.raises(TypeError, match="knowledge"):
        Scheduler(Cluster(ONE_GPU), make_policy("fifo+first-fit"))  # type: ignore[call-arg]


class Broken(User):
    """Raises in one of its methods."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def run_ms(self, job: Job) -> Spread | None:
        if self.where == "run_ms":
            raise KeyError("lost")
        return Spread(100, 50, 200)

    def observe(self, record: Record) -> None:
        if self.where == "observe":
            raise KeyError("lost")

    def outlived(self, job: Job, ran_ms: int) -> None:
        if self.where == "outlived":
            raise KeyError("lost")


@pytest.mark.parametrize("policy", ["fifo+first-fit", "sjf-expected+first-fit", "easy+fifo+first-fit"])
def test_what_a_knowledge_raises_while_it_is_decided_is_told_as_its_own_with_the_job(policy: str) -> None:
    for where, at_ms in (("run_ms", 0), ("outlived", 150)):
        knowledge = Broken(where)
        one = Scheduler(Cluster(ONE_GPU), make_policy(policy, Setting(knowledge=knowledge)), knowledge)
        one.submit(live("a"))
        why = rf"at {at_ms} ms knowledge Broken fails in {where} of job 'a': KeyError: 'lost' \(.*test_expectations.py:"
        if where == "outlived":
            assert started(one) == ["a"]
        with pytest.raises(KnowledgeError, match=why):
            list(one.decide(at_ms))
        assert one.waits("a") == (where == "run_ms")


def test_what_a_knowledge_raises_when_it_is_told_comes_after_what_happened() -> None:
    knowledge = Broken("observe")
    one = Scheduler(Cluster([Node("a", 2)]), make_policy("fifo+first-fit"), knowledge)
    for name in "xyz":
        one.submit(live(name))
    assert started(one) == ["x", "y"]
    assert one.ended("x", RecordState.COMPLETED, 5).job.id == "x"
    with pytest.raises(
        KnowledgeError, match="at 5 ms knowledge Broken fails in observe of job 'x': KeyError"
    ):
        list(one.decide(5))
    assert started(one, 5) == ["z"]
    assert [run.job.id for run in one.node_lost("a", 6)] == ["y", "z"]
    assert [job.id for job in one.queue] == ["y", "z"]  # both are released and wait
    assert not one.cluster.running
    with pytest.raises(KnowledgeError, match="fails in observe of job 'y'"):
        list(one.decide(6))


def test_what_has_ended_is_released_whatever_the_knowledge_raises() -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError

    knowledge = Oracle((), make_interference("mps"))
    knowledge.certain, knowledge.speeds = False, broken
    one = Scheduler(Cluster([Node("a", 1)]), shares_one_gpu, knowledge)
    for name in "xyz":
        one.submit(live(name))
    assert started(one) == ["x", "y", "z"]
    assert one.ended("x", RecordState.COMPLETED, 5).job.id == "x"
    assert [run.job.id for run in one.node_lost("a", 6)] == ["y", "z"]
    assert not one.cluster.running
    with pytest.raises(
        KnowledgeError, match="does not tell how fast running jobs are, by its profiles and speeds"
    ):
        list(one.decide(7))


def shares_one_gpu(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
    for job in queue:
        yield Placement(job, (GpuSlot(0, 0),), job.share, True, True)


@pytest.mark.parametrize("answer", [5, (1, 2, 3), Spread("5", 1, 2), Spread(None, 1, 2)])
@pytest.mark.parametrize("policy", ["fifo+first-fit", "sjf-expected+first-fit"])
def test_an_answer_of_the_wrong_kind_is_told_as_the_knowledge_s(answer: object, policy: str) -> None:
    knowledge = User()
    knowledge.run_ms = lambda job: answer
    one = Scheduler(Cluster(ONE_GPU), make_policy(policy, Setting(knowledge=knowledge)), knowledge)
    one.submit(live("a"))
    with pytest.raises(KnowledgeError, match="as the run time of job 'a'; expected a Spread of numbers"):
        list(one.decide(0))
    assert one.waits("a")


def test_the_record_of_a_withdrawn_attempt_has_when_that_attempt_was_queued() -> None:
    class Noting(User):
        def observe(self, record: Record) -> None:
            records.append(record)

    records: list[Record] = []
    knowledge = Noting()
    one = Scheduler(Cluster(ONE_GPU), make_policy("fifo+first-fit"), knowledge)
    one.submit(live("a", retries=1))
    assert started(one) == ["a"]
    one.ended("a", RecordState.OUT_OF_MEMORY, 1000)
    assert started(one, 1000) == ["a"]
    one.withdraw("a", 2000)
    assert [(record.attempt, record.queued_ms) for record in records] == [(1, 0), (2, 1000)]


def test_what_a_policy_raises_is_told_as_the_policy_s() -> None:
    def raises(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        raise KeyError("oops")
        yield

    one = Scheduler(Cluster(ONE_GPU), raises, Broken(""))
    one.submit(live("a"))
    with pytest.raises(PolicyError, match="the policy fails: KeyError: 'oops'"):
        list(one.decide(3))
