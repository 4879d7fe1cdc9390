"""What the scheduler makes of jobs and nodes that come, change and go."""

from __future__ import annotations

import pytest

from berth.cluster import Cluster
from berth.errors import SchedulerError
from berth.knowledge import User
from berth.model import GpuSlot, Job, Node, Placement, Record, RecordState, Share
from berth.policies import Setting, make_policy
from berth.policies.schemes.limits import Limit, Limits
from berth.scheduler import NeverFits, Scheduler
from tests.scheduler.examples import ONE_GPU, WHERE, WHOLE, live, scheduler, started


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
    assert one._expectations is not None
    assert len(one._expectations._ends) < 100


@pytest.mark.parametrize(
    "policy", ["fifo+best-fit", "easy+sjf-expected+fgd", "fifo+first-fit", "fifo+round-robin"]
)
def test_requests_that_nobody_uses_any_more_are_forgotten(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berth.scheduler.scheduler.MOST_REQUESTS", 20)
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
    monkeypatch.setattr("berth.scheduler.scheduler.MOST_REQUESTS", 20)
    one = scheduler(nodes=[Node("a", 1, None, 10**6, 10**6)])
    for at in range(100):
        one.submit(live(f"j{at}", cpu_milli=at))
    for at in range(100):
        assert started(one, at) == [f"j{at}"]
        one.ended(f"j{at}", RecordState.COMPLETED, at)
    assert one.cluster.request_types <= 100
    assert one.cluster.free.cpu_milli.tolist() == [10**6]


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


def test_each_job_that_never_fits_is_told_even_if_the_caller_stops_early() -> None:
    one = Scheduler(Cluster(ONE_GPU), make_policy("fifo+first-fit"), User())
    for name in "ab":
        assert not one.submit(live(name, gpus=9))
    first = next(one.decide(0))
    second = next(one.decide(1))
    assert [outcome.job.id for outcome in (first, second)] == ["a", "b"]


@pytest.mark.parametrize("wrong", [{"gpus": "1"}, {"share": None}, {"models": ["V100"]}])
def test_a_job_that_makes_no_sense_is_refused_when_it_comes(wrong: dict[str, object]) -> None:
    one = Scheduler(Cluster(ONE_GPU), make_policy("fifo+first-fit"), User())
    with pytest.raises(SchedulerError, match="makes no sense"):
        one.submit(live("a", **wrong))
    assert not one.waits("a")


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


def test_a_run_that_is_released_in_a_trial_goes_on_as_if_it_had_not_been() -> None:
    told: list[Record] = []

    class Listens(User):
        def observe(self, record: Record) -> None:
            told.append(record)

    one = Scheduler(Cluster(ONE_GPU), make_policy("fifo+first-fit", Setting(knowledge=User())), Listens())
    one.submit(live("a", estimate_ms=1000))
    assert started(one) == ["a"]
    one.started("a")
    with one.trial():
        one.release("a", 400)
        one.submit(live("b"))
        assert started(one, 400) == ["b"]
    assert not one.waits("b")
    back = one.cluster.running["a"]
    assert (back.start_ms, back.end_ms(), back.work_us, told) == (0, 1000, 1_000_000, [])
    with pytest.raises(SchedulerError, match="has started already"):
        one.failed_to_start("a", 700)
    one.ended("a", RecordState.COMPLETED, 1000)
    assert [(each.job_id, each.start_ms, each.end_ms) for each in told] == [("a", 0, 1000)]
