"""The scheduler and a knowledge that fails, learns or tells nonsense."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from berth.cluster import Cluster, Queue
from berth.errors import KnowledgeError, PolicyError
from berth.interference import make_interference
from berth.knowledge import History, Spread, User
from berth.model import GpuSlot, Job, Node, Placement, RecordState, Share, WakeAt
from berth.policies import Decision, Setting, make_policy
from berth.profiles import THESIS_GPU, thesis_profiles
from berth.scheduler import Scheduler


class Moody(User):
    """Fails while it is told to."""

    fails = False

    def run_ms(self, job: Job) -> Spread | None:
        if self.fails:
            raise KeyError(job.id)
        return Spread.exactly(1000)


def live(name: str, **more: object) -> Job:
    return Job(name, 0, None, **more)  # type: ignore[arg-type]


def made(policy: str, knowledge: User | History, gpus: int = 2) -> Scheduler:
    nodes = [Node("a", gpus, THESIS_GPU, 64_000, 64_000)]
    return Scheduler(Cluster(nodes), make_policy(policy, Setting(knowledge=knowledge)), knowledge)


def started(one: Scheduler, now_ms: int) -> list[str]:
    return [outcome.job.id for outcome in one.decide(now_ms) if isinstance(outcome, Placement)]


@pytest.mark.parametrize("policy", ["sjf-expected+first-fit", "easy+fifo+first-fit", "sjf-expected+greedy"])
def test_no_job_is_lost_while_the_knowledge_fails(policy: str) -> None:
    knowledge = Moody()
    one = made(policy, knowledge)
    for name in "xyz":
        one.submit(live(name))
    assert started(one, 0) == ["x", "y"]
    knowledge.fails = True
    one.submit(live("w"))
    assert [run.job.id for run in one.node_lost("a", 5)] == ["x", "y"]
    assert not one.cluster.running
    assert one.withdraw("w", 6) == live("w")
    one.replace(live("z", priority=7))
    one.node_back("a")
    if policy != "easy+fifo+first-fit":  # which asks of jobs without a limit only if one has to wait
        with pytest.raises(KnowledgeError):
            list(one.decide(7))
    knowledge.fails = False
    begun = started(one, 8)
    assert len(begun) == 2
    for name in begun:
        one.ended(name, RecordState.COMPLETED, 9)
    begun += started(one, 9)
    assert sorted(begun) == ["x", "y", "z"]


def test_a_refused_placement_waits_on_although_the_knowledge_fails() -> None:
    knowledge = Moody()
    one = made("sjf-expected+first-fit", knowledge, gpus=1)
    one.submit(live("x"))
    one.submit(live("y"))
    assert started(one, 0) == ["x"]
    one.ended("x", RecordState.COMPLETED, 5)
    knowledge.fails = True
    with pytest.raises(KnowledgeError):
        list(one.decide(5))
    knowledge.fails = False
    assert started(one, 6) == ["y"]


def test_backfilling_looks_at_every_request_type_after_they_were_numbered_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = {}
    for most in (8, 1 << 16):
        monkeypatch.setattr("berth.scheduler.scheduler.MOST_REQUESTS", most)
        one = made("easy+fifo+first-fit", User(), gpus=4)
        for at in range(5):
            one.submit(live(f"o{at}", cpu_milli=at + 1, time_limit_ms=10))
            started(one, at)
            one.ended(f"o{at}", RecordState.COMPLETED, at)
        one.submit(live("three", gpus=3, time_limit_ms=10_000))
        started(one, 10)
        one.submit(live("head", gpus=4, time_limit_ms=10_000))
        one.submit(live("mid", gpus=2, time_limit_ms=10))
        started(one, 11)
        begun[most] = []
        for at in range(9):
            one.submit(live(f"s{at}", cpu_milli=100 + at, time_limit_ms=10))
            begun[most] += started(one, 12 + at)
            if f"s{at}" in one.cluster.running:
                one.ended(f"s{at}", RecordState.COMPLETED, 12 + at)
    assert begun[8] == begun[1 << 16] == [f"s{at}" for at in range(9)]


class Asked:
    """A policy that notes when it was asked, and wants to be woken."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        self.asked.append(now_ms)
        if now_ms == 0:
            yield WakeAt(100)


class Forgetful(User):
    def observe(self, record: object) -> None:
        raise ValueError("no")


def test_a_wake_outlives_a_decision_that_only_tells_of_a_fault() -> None:
    knowledge, policy = Forgetful(), Asked()
    one = Scheduler(Cluster([Node("a", 1)]), policy, knowledge)
    one.submit(live("x"))
    list(one.decide(0))
    one.cluster.place(Placement(live("r"), (GpuSlot(0, 0),), Share(1000, 0)))
    one.ended("r", RecordState.COMPLETED, 50)
    with pytest.raises(KnowledgeError, match="observe of job 'r'") as told:
        list(one.decide(100))
    assert isinstance(told.value.__cause__, ValueError)
    assert (one.next_wake_ms, policy.asked) == (100, [0])
    list(one.decide(101))
    assert (one.next_wake_ms, policy.asked) == (None, [0, 101])


def test_an_error_of_the_policy_is_not_the_knowledges() -> None:
    def helper(knowledge: User, job: Job) -> object:
        return {}[job.id]

    class Own:
        def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
            yield helper(knowledge, live("a"))  # type: ignore[misc]

    knowledge = User()
    one = Scheduler(Cluster([Node("a", 1)]), Own(), knowledge)
    one.submit(live("a"))
    with pytest.raises(PolicyError, match="the policy fails: KeyError"):
        list(one.decide(0))


def test_parts_of_several_gpus_are_not_alone() -> None:
    heard: list[bool] = []

    class Ear(History):
        def worked(self, job: Job, work_ms: int, *, alone: bool) -> None:
            heard.append(alone)

    one = made("fifo+first-fit", Ear())
    half = {"gpus": 2, "share": Share(500, 0)}
    one.submit(live("a", **half))
    one.submit(live("b", **half))
    assert started(one, 0) == ["a", "b"]
    one.ended("a", RecordState.COMPLETED, 10)
    one.ended("b", RecordState.COMPLETED, 20)
    assert heard == [False, False]


def test_a_job_that_starts_at_its_second_attempt_is_a_usual_request() -> None:
    knowledge = User()
    one = made("fifo+first-fit", knowledge)
    one.submit(live("a"))
    started(one, 0)
    one.failed_to_start("a", 1)
    started(one, 2)
    one.started("a")
    one.ended("a", RecordState.COMPLETED, 3)
    assert [request.gpus for request in knowledge.usual_requests()] == [1]


def test_what_was_learned_of_a_job_that_is_withdrawn_is_forgotten() -> None:
    knowledge = User()
    one = made("fifo+first-fit", knowledge)
    one.submit(live("a", retries=1))
    started(one, 0)
    one.ended("a", RecordState.OUT_OF_MEMORY, 5, held_mib=6000)
    assert knowledge.peak_mem_mib(live("a")) == Spread(6750, 0, 6750)
    one.withdraw("a", 6)
    assert knowledge.peak_mem_mib(live("a")) is None


def test_nodes_that_did_not_change_are_told_of_once() -> None:
    one = made("fifo+first-fit", User())
    one.submit(live("big", gpus=9))
    assert [type(outcome).__name__ for outcome in one.decide(0)] == ["NeverFits"]
    nodes = one.cluster.nodes
    assert one.nodes_changed(nodes, 1) == []
    assert list(one.decide(1)) == []
    one.nodes_changed([*nodes, Node("b", 1)], 2)
    assert [type(outcome).__name__ for outcome in one.decide(2)] == ["NeverFits"]
    one.nodes_changed([*nodes, Node("b", 9)], 3)
    assert [type(outcome).__name__ for outcome in one.decide(3)] == ["Placement"]


@pytest.mark.parametrize("high", [-(10**9), 0, float("nan"), 10**15])
def test_a_need_of_memory_that_makes_no_sense_is_none(high: float) -> None:
    class Nonsense(History):
        def peak_mem_mib(self, job: Job, gpu: object = None) -> Spread | None:
            return Spread(high, high, high)  # type: ignore[arg-type]

    knowledge = Nonsense(
        profiles=thesis_profiles(),
        speeds=make_interference("mps").speeds,  # type: ignore[attr-defined]
    )
    one = made("greedy", knowledge, gpus=1)
    one.submit(live("a", application="GROMACS"))
    (placement,) = one.decide(0)
    assert isinstance(placement, Placement)
    assert type(placement.share.mem_mib) is int
    assert 0 < placement.share.mem_mib <= THESIS_GPU.mem_mib
