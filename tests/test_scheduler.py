"""The scheduler, driven by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import pytest

from berth.cluster import Cluster, Queue
from berth.errors import KnowledgeError, PolicyError, SchedulerError
from berth.interference import make_interference
from berth.knowledge import Oracle, Spread, User
from berth.model import FOREVER_MS, Evict, GpuSlot, Job, Node, Placement, Record, RecordState, Share, WakeAt
from berth.policies import Decision, Setting, make_policy
from berth.policies.schemes.limit_settings import Limit
from berth.policies.schemes.limits import Limits
from berth.scheduler import Evicted, NeverFits, Refused, Scheduler

ONE_GPU = [Node("a", 1, None, 8000, 8000)]
WHERE = (GpuSlot(0, 0),)
WHOLE = Share(1000, 0)


def live(name: str, **more: object) -> Job:
    return Job(name, 0, None, **more)  # type: ignore[arg-type]


def scheduler(policy: object = "fifo+first-fit", nodes: list[Node] = ONE_GPU, **more: object) -> Scheduler:
    knowledge = User()
    made = make_policy(policy, Setting(knowledge=knowledge)) if isinstance(policy, str) else policy
    return Scheduler(Cluster(nodes), made, knowledge, **more)  # type: ignore[arg-type]


def started(one: Scheduler, now_ms: int = 0) -> list[str]:
    return [outcome.job.id for outcome in one.decide(now_ms) if isinstance(outcome, Placement)]


class Says:
    """A policy that yields what it was told to."""

    def __init__(self, *decisions: object) -> None:
        self.decisions = decisions

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        yield from self.decisions  # type: ignore[misc]


def test_a_wake_stays_until_it_is_due_and_is_handed_out_once() -> None:
    one = scheduler(Says(WakeAt(100), WakeAt(50), WakeAt(100)))
    one.submit(live("a"))
    assert list(one.decide(0)) == [WakeAt(100), WakeAt(50)]
    assert one.next_wake_ms == 50
    assert list(one.decide(10)) == []  # known already
    assert one.next_wake_ms == 50
    assert [type(outcome) for outcome in one.decide(60)] == [Refused]  # 50 ms is over: not later than now
    assert one.next_wake_ms == 100


@pytest.mark.parametrize("limited", [None, "", "u"])
@pytest.mark.parametrize("inner", ["fifo+first-fit", "easy+fifo+first-fit", "easy+priority+best-fit"])
def test_a_job_that_goes_ahead_of_a_waiting_one_is_decided_on_before_it(
    inner: str, limited: str | None
) -> None:
    policy: object = inner
    if limited is not None:
        policy = Limits(make_policy(inner), (Limit("user", limited, running=50),))
    one = scheduler(policy)
    jobs = {name: live(name, user="u") for name in "abcd"}
    for name in "abd":
        one.submit(jobs[name])
    assert started(one) == ["a"]  # the others are known to the policy
    one.submit(jobs["c"], ahead_of=jobs["b"])
    order = []
    for now_ms in range(1, 4):
        (running,) = one.cluster.running
        one.ended(running, RecordState.COMPLETED, now_ms)
        order += started(one, now_ms)
    assert order == ["c", "b", "d"]


def test_a_job_cannot_go_ahead_of_one_that_does_not_wait() -> None:
    one = scheduler()
    with pytest.raises(SchedulerError, match="'a' cannot go ahead of job 'b', which does not wait"):
        one.submit(live("a"), ahead_of=live("b"))
    assert not one.waits("a")


def test_what_is_placed_counts_before_its_process_exists() -> None:
    one = scheduler()
    one.submit(live("a"))
    one.submit(live("b"))
    assert started(one) == ["a"]
    assert started(one, 1) == []
    assert list(one.cluster.running) == ["a"]


def test_a_start_that_fails_gives_back_and_waits_again() -> None:
    one = scheduler()
    one.submit(live("a"))
    one.submit(live("b"))
    assert started(one) == ["a"]
    run = one.failed_to_start("a", 5)
    assert (run.job.id, run.attempt, one.attempt("a")) == ("a", 1, 2)
    assert started(one, 5) == ["b"]
    assert [job.id for job in one.queue] == ["a"]


def test_a_start_that_fails_for_good_is_forgotten() -> None:
    one = scheduler()
    one.submit(live("a"))
    assert started(one) == ["a"]
    one.failed_to_start("a", 5, again=False)
    assert not len(one.queue)
    assert one.attempt("a") == 1


def test_what_has_started_does_not_fail_to_start() -> None:
    one = scheduler()
    one.submit(live("a"))
    assert started(one) == ["a"]
    one.started("a")
    with pytest.raises(SchedulerError, match="has started already"):
        one.failed_to_start("a", 5)
    assert list(one.cluster.running) == ["a"]


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (Placement(live("other"), WHERE, Share()), "starts job 'other', which is not waiting"),
        (Placement(live("a"), (GpuSlot(3, 0),), Share()), "not waiting"),  # an equal job, but another one
        (Evict(live("a")), "evicts job 'a', which is not running"),
        (WakeAt(0), "woken at 0 ms; expected a later whole number"),
    ],
)
def test_a_decision_that_cannot_be_comes_back_and_changes_nothing(decision: object, why: str) -> None:
    one = scheduler(Says(decision))
    one.submit(live("a"))
    before = one.cluster.digest()
    (refused,) = one.decide(0)
    assert isinstance(refused, Refused)
    assert refused.decision == decision
    assert why in refused.why
    assert (one.cluster.digest(), [job.id for job in one.queue]) == (before, ["a"])


def test_a_placement_that_does_not_fit_comes_back_and_the_caller_may_go_on() -> None:
    jobs = [live("a"), live("b")]
    one = scheduler(Says(Placement(jobs[0], (GpuSlot(7, 0),), Share()), Placement(jobs[1], WHERE, Share())))
    for job in jobs:
        one.submit(job)
    refused, placed = one.decide(0)
    assert isinstance(refused, Refused)
    assert "there is no slot (7, 0)" in refused.why
    assert placed == Placement(jobs[1], WHERE, Share())
    assert [job.id for job in one.queue] == ["a"]


def test_a_job_that_was_replaced_keeps_its_place_and_is_looked_at_again() -> None:
    one = scheduler(nodes=[Node("a", 2, None, 8000, 8000)])
    for job in (live("a"), live("big", gpus=2), live("c")):
        one.submit(job)
    assert started(one) == ["a"]  # big holds up c
    assert started(one, 1) == []
    assert one.replace(live("big", gpus=1, priority=3))
    assert [job.id for job in one.queue] == ["big", "c"]
    assert started(one, 2) == ["big"]


def test_a_job_that_was_replaced_by_what_fits_nowhere_is_told() -> None:
    one = scheduler()
    one.submit(live("a"))
    assert not one.replace(live("a", gpus=9))
    assert started(one) == []
    with pytest.raises(SchedulerError, match="0 or more"):
        one.replace(live("a", gpus=-1))
    assert [job.gpus for job in one.queue] == [9]


def test_a_running_job_keeps_its_size_and_takes_other_limits() -> None:
    one = scheduler()
    one.submit(live("a"))
    assert started(one) == ["a"]
    assert one.replace(live("a", time_limit_ms=5))
    assert one.cluster.running["a"].job.time_limit_ms == 5
    with pytest.raises(SchedulerError, match="stay as they are"):
        one.replace(live("a", cpu_milli=500))


def test_a_stranger_that_leaves_and_a_card_that_grows_let_the_first_job_in() -> None:
    one = scheduler()
    one.strangers(GpuSlot(0, 0), 1000, 0)
    one.submit(live("a"))
    assert started(one) == []
    one.strangers(GpuSlot(0, 0), 0, 0)
    assert started(one, 1) == ["a"]
    one.submit(live("b"))
    assert started(one, 2) == []
    assert one.nodes_changed([Node("a", 2, None, 8000, 8000)], 3) == []
    assert started(one, 3) == ["b"]


def test_a_node_that_is_gone_gives_its_jobs_back_to_the_queue() -> None:
    one = scheduler(nodes=[Node("a", 1), Node("b", 1)])
    for name in "xy":
        one.submit(live(name))
    assert started(one) == ["x", "y"]
    assert [run.job.id for run in one.nodes_changed([Node("b", 1)], 5)] == ["x"]
    assert [job.id for job in one.queue] == ["x"]
    assert started(one, 5) == []
    one.ended("y", RecordState.COMPLETED, 9)
    assert started(one, 9) == ["x"]
    assert one.attempt("x") == 2


def test_a_node_that_is_lost_comes_back() -> None:
    one = scheduler()
    one.submit(live("a"))
    assert started(one) == ["a"]
    assert [run.job.id for run in one.node_lost("a", 4)] == ["a"]
    assert started(one, 4) == []
    one.node_back("a")
    assert started(one, 5) == ["a"]
    with pytest.raises(SchedulerError, match="no node 'z'; there are a"):
        one.node_lost("z", 6)


def test_a_job_is_withdrawn_wherever_it_is() -> None:
    one = scheduler()
    jobs = [live("a"), live("b")]
    for job in jobs:
        one.submit(job)
    assert started(one) == ["a"]
    assert one.withdraw("b", 1) is jobs[1]
    assert one.withdraw("a", 1).job is jobs[0]  # type: ignore[union-attr]
    assert (len(one.queue), len(one.cluster.running)) == (0, 0)
    with pytest.raises(SchedulerError, match="neither waits nor runs"):
        one.withdraw("a", 2)


def test_an_id_is_given_once() -> None:
    one = scheduler()
    one.submit(live("a"))
    with pytest.raises(SchedulerError, match="waits or runs already"):
        one.submit(live("a"))
    assert started(one) == ["a"]
    with pytest.raises(SchedulerError, match="waits or runs already"):
        one.submit(live("a"))


def test_an_eviction_gives_back_and_queues_again() -> None:
    one = scheduler("preempt+fifo+first-fit")
    one.submit(live("low"))
    assert started(one) == ["low"]
    one.submit(live("high", priority=1))
    outcomes = list(one.decide(5))
    assert isinstance(outcomes[0], Evicted)
    assert outcomes[0].run.job.id == "low"
    assert isinstance(outcomes[1], Placement)
    assert [job.id for job in one.queue] == ["low"]


def test_out_of_memory_is_queued_again_while_there_are_retries() -> None:
    one = scheduler()
    one.submit(live("a", retries=1))
    assert started(one) == ["a"]
    one.ended("a", RecordState.OUT_OF_MEMORY, 5, held_mib=1000)
    assert one.waits("a")
    spread = one.knowledge.peak_mem_mib(live("a"))
    assert spread is not None
    assert spread.high == 1125  # an eighth more than it held
    assert started(one, 6) == ["a"]
    one.ended("a", RecordState.OUT_OF_MEMORY, 7, held_mib=1125)
    assert not one.waits("a")


def test_a_policy_that_raises_is_told_and_what_it_decided_before_stands() -> None:
    job = live("a")

    def raises(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        yield Placement(job, WHERE, Share())
        raise KeyError("oops")

    one = scheduler(raises)
    one.submit(job)
    with pytest.raises(
        PolicyError, match=r"at 3 ms the policy fails: KeyError: 'oops' \(.*test_scheduler.py:"
    ):
        list(one.decide(3))
    assert list(one.cluster.running) == ["a"]


def test_a_policy_that_never_ends_is_stopped_in_time() -> None:
    def endless(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        at_ms = now_ms
        while True:
            at_ms += 1
            yield WakeAt(at_ms)

    one = scheduler(endless)
    one.submit(live("a"))
    looks = iter(range(1000))
    with pytest.raises(PolicyError, match="has not ended its decisions within its time"):
        for _ in one.decide(0, out_of_time=lambda: next(looks) > 50):
            pass
    assert [job.id for job in one.queue] == ["a"]


def test_a_policy_that_writes_to_what_it_is_shown_is_told() -> None:
    def meddles(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        queue.remove(next(iter(queue)))
        yield WakeAt(now_ms + 1)

    one = scheduler(meddles)
    one.submit(live("a"))
    with pytest.raises(PolicyError, match="it may only yield"):
        list(one.decide(0))


@pytest.mark.parametrize("nonsense", [None, "start", 5, ()])
def test_a_policy_that_yields_what_is_no_decision_is_told(nonsense: object) -> None:
    one = scheduler(Says(nonsense))
    one.submit(live("a"))
    with pytest.raises(PolicyError, match="yields Placement, Evict or WakeAt"):
        list(one.decide(0))


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


@pytest.mark.parametrize("job", [live("a", gpus=-1), live("a", share=Share(0, 0)), live("a", mem_mib=-5)])
def test_a_job_that_makes_no_sense_is_refused_and_stops_nobody(job: Job) -> None:
    one = scheduler()
    with pytest.raises(SchedulerError, match="makes no sense"):
        one.submit(job)
    one.submit(live("b"))
    assert started(one) == ["b"]


def test_a_held_back_job_that_was_replaced_by_one_within_its_limit_starts() -> None:
    one = scheduler("limits?user_gpus=1+fifo+first-fit", [Node("a", 8)])
    one.submit(live("a", user="u", gpus=8))
    assert started(one) == []
    one.replace(live("a", user="u", gpus=1))
    assert started(one, 1) == ["a"]
    one.submit(live("free"))
    assert started(one, 2) == ["free"]


def test_a_job_without_a_limit_that_was_replaced_still_starts() -> None:
    one = scheduler("limits?vc_gpus=1+fifo+first-fit", [Node("a", 1)])
    for name in ("first", "second"):
        one.submit(live(name, virtual_cluster="v"))
    assert started(one) == ["first"]
    one.replace(live("second", virtual_cluster="v", priority=2))
    one.ended("first", RecordState.COMPLETED, 5)
    assert started(one, 5) == ["second"]


def test_a_running_job_stays_its_users() -> None:
    one = scheduler("fair-share+first-fit")
    one.submit(live("a", user="u"))
    assert started(one) == ["a"]
    with pytest.raises(SchedulerError, match="its user, GPUs, CPU and memory stay"):
        one.replace(live("a", user="v"))
    one.ended("a", RecordState.COMPLETED, 5)


def test_nodes_may_come_as_an_iterator() -> None:
    one = scheduler()
    assert one.nodes_changed(iter([Node("a", 2)]), 0) == []  # type: ignore[arg-type]
    assert one.cluster.names == {"a": 0}


def test_what_is_kept_of_jobs_is_let_go_when_they_have_ended() -> None:
    one = scheduler("least-attained-service+first-fit")
    for at in range(300):
        one.submit(live(f"j{at}", estimate_ms=10**9))
        assert started(one, at) == [f"j{at}"]
        one.ended(f"j{at}", RecordState.COMPLETED, at + 1)
    assert one.attempts == {}
    assert one.cluster.usage().jobs == {}
    assert one._beliefs is not None
    assert len(one._beliefs._ends) < 100


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


@pytest.mark.parametrize(
    "policy", ["fifo+best-fit", "easy+sjf-expected+fgd", "fifo+first-fit", "fifo+round-robin"]
)
def test_requests_that_nobody_uses_any_more_are_forgotten(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berth.scheduler.MOST_REQUESTS", 20)
    one = scheduler(policy, [Node(name, 2, None, 100_000, 100_000) for name in "abc"])
    one.submit(live("stays", share=Share(500, 7), cpu_milli=17, estimate_ms=10**9))
    assert started(one) == ["stays"]
    one.submit(live("waits", gpus=7, nodes=7, estimate_ms=10**9))
    most = 0
    for at in range(300):
        if at == 100:
            one.withdraw("waits", at)
        job = live(f"j{at}", share=Share(400, at), cpu_milli=at, priority=1, estimate_ms=10)
        one.submit(job)
        ran = started(one, at)
        assert ran == [job.id] or (ran == [] and at < 100)  # strict queues wait behind the big one
        if ran:
            one.ended(job.id, RecordState.COMPLETED, at + 1)
        else:
            one.withdraw(job.id, at + 1)
        most = max(most, one.cluster.request_types)
    assert most <= 22
    assert len(one.cluster.requests) <= 64
    one.ended("stays", RecordState.COMPLETED, 400)  # what it took is given back to the last bit
    assert one.cluster.free_total_milli == 6000
    assert (one.cluster.free.milli == one.cluster.capacity.milli).all()
    assert (one.cluster.free.cpu_milli == one.cluster.capacity.cpu_milli).all()


def test_request_types_of_all_that_wait_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berth.scheduler.MOST_REQUESTS", 20)
    one = scheduler(nodes=[Node("a", 1, None, 10**6, 10**6)])
    for at in range(100):
        one.submit(live(f"j{at}", cpu_milli=at))
    for at in range(100):
        assert started(one, at) == [f"j{at}"]
        one.ended(f"j{at}", RecordState.COMPLETED, at)
    assert one.cluster.request_types <= 100
    assert one.cluster.free.cpu_milli.tolist() == [10**6]


def test_the_caller_says_what_is_believed() -> None:
    with pytest.raises(TypeError, match="knowledge"):
        Scheduler(Cluster(ONE_GPU), make_policy("fifo+first-fit"))  # type: ignore[call-arg]


def never(one: Scheduler, now_ms: int = 0) -> list[str]:
    return [outcome.job.id for outcome in one.decide(now_ms) if isinstance(outcome, NeverFits)]


def test_a_job_that_no_node_could_hold_is_told_when_it_comes_and_why() -> None:
    one = scheduler()
    assert not one.submit(live("big", gpus=9, models=("H100",)))
    assert one.submit(live("small"))
    outcomes = list(one.decide(0))
    assert [type(outcome) for outcome in outcomes] == [NeverFits]  # and small is held up, which is now known
    why = outcomes[0].why  # type: ignore[union-attr]
    assert (
        "job 'big' asks for 9 GPUs (1000 milli and 0 MiB of each), 0 milli of CPU and 0 MiB on models H100"
        in why
    )
    assert never(one, 1) == []  # once
    one.withdraw("big", 2)
    assert started(one, 2) == ["small"]


def test_a_waiting_job_that_the_changed_nodes_cannot_hold_any_more_is_told() -> None:
    one = scheduler(nodes=[Node("a", 2), Node("b", 1)])
    one.submit(live("first", gpus=2))
    assert started(one) == ["first"]
    assert one.submit(live("waits", gpus=2))
    assert never(one, 1) == []
    one.nodes_changed([Node("b", 1)], 2)
    assert never(one, 2) == ["waits", "first"]
    assert never(one, 3) == []
    assert one.replace(live("waits", gpus=1))
    one.nodes_changed([Node("b", 1), Node("c", 1)], 4)
    assert never(one, 4) == ["first"]  # and waits is running
    assert one.submit(live("last"))
    assert not one.replace(live("last", gpus=3))
    assert never(one, 5) == ["last"]


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
        why = rf"at {at_ms} ms knowledge Broken fails in {where} of job 'a': KeyError: 'lost' \(.*test_scheduler.py:"
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


@pytest.mark.parametrize(
    ("slots", "share"),
    [
        (None, WHOLE), (5, WHOLE), ((0,), WHOLE), (GpuSlot(0, 0), WHOLE), (([0, 0],), WHOLE), ([GpuSlot(0, 0)], WHOLE),
        ((GpuSlot(0, 0),), None), ((GpuSlot(0, 0),), 1000), ((GpuSlot(0, 0),), Share("x", 0)),
    ],
)  # fmt: skip
def test_a_placement_of_the_wrong_kind_is_refused_and_the_job_waits(slots: object, share: object) -> None:
    def wrong(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        for job in queue:
            yield Placement(job, slots, share)

    one = Scheduler(Cluster(ONE_GPU), wrong, User())
    one.submit(live("a"))
    before = one.cluster.digest()
    (refused,) = one.decide(0)
    assert isinstance(refused, Refused)
    assert "job 'a'" in refused.why
    assert one.waits("a")
    assert not one.cluster.running
    assert one.cluster.digest() == before


@pytest.mark.parametrize("time_ms", [float("nan"), float("inf"), 1.5, 0])
def test_a_wake_that_is_no_later_whole_number_is_refused(time_ms: object) -> None:
    one = Scheduler(Cluster(ONE_GPU), lambda queue, cluster, now_ms: iter([WakeAt(time_ms)]), User())
    (refused,) = one.decide(0)
    assert isinstance(refused, Refused)
    assert "expected a later whole number" in refused.why
    assert one.next_wake_ms is None


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


def test_each_job_that_never_fits_is_told_even_if_the_caller_stops_early() -> None:
    one = Scheduler(Cluster(ONE_GPU), make_policy("fifo+first-fit"), User())
    for name in "ab":
        assert not one.submit(live(name, gpus=9))
    first = next(one.decide(0))
    second = next(one.decide(1))
    assert [outcome.job.id for outcome in (first, second)] == ["a", "b"]


@pytest.mark.parametrize("wrong", [{"gpus": "1"}, {"gpus": 2**70}, {"share": None}, {"models": ["V100"]}])
def test_a_job_that_makes_no_sense_is_refused_when_it_comes(wrong: dict[str, object]) -> None:
    one = Scheduler(Cluster(ONE_GPU), make_policy("fifo+first-fit"), User())
    with pytest.raises(SchedulerError, match="makes no sense"):
        one.submit(live("a", **wrong))
    assert not one.waits("a")


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


def test_a_job_that_waited_already_waits_in_its_place_if_it_cannot_be_placed() -> None:
    one = scheduler()
    for name in "abc":
        one.submit(live(name, gpus=1))
    big = live("b", gpus=1, priority=7)
    assert not one.place(Placement(big, (GpuSlot(0, 5),), WHOLE, False, False), 0)
    assert [(job.id, job.priority) for job in one.queue] == [("a", 0), ("b", 0), ("c", 0)]
    assert not one.place(Placement(live("d"), (GpuSlot(0, 5),), WHOLE, False, False), 0)
    assert not one.waits("d")
    assert one.place(Placement(big, WHERE, WHOLE, False, False), 0)
    assert [job.id for job in one.queue] == ["a", "c"]
    assert one.cluster.running["b"].job is big
    with pytest.raises(SchedulerError, match="waits or runs already"):
        one.place(Placement(big, WHERE, WHOLE, False, False), 0)


def test_a_job_is_placed_without_a_wake_being_lost() -> None:
    one = scheduler(Says(WakeAt(50)))
    one.submit(live("a"))
    assert list(one.decide(0)) == [WakeAt(50)]
    assert one.place(Placement(live("b"), WHERE, WHOLE, False, False), 60)
    assert one.next_wake_ms == 50
