"""Every policy of the registry in a live loop: a fake clock, unknown run times, starts that fail, nodes that come and
go, a stranger on a GPU."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.interference import make_speeds
from berth.knowledge import History, Knowledge, Noise, Noisy, Oracle, User
from berth.model import EventKind, GpuModel, GpuSlot, Job, Node, Share, gang_of
from berth.policies import ORDERS, PLACEMENTS, SCHEMES, Policy, Setting, make_policy, policies_found
from berth.policies.protocol import Decision
from berth.policies.schemes.rounds import Rounds
from berth.profiles import THESIS_GPU, thesis_profiles
from berth.scheduler import Scheduler
from tests.every_policy import some
from tests.live_loop import Back, LiveLoop, Lose, Nodes, Replace, Strangers, Withdraw, held

EVERY = sorted(
    {
        *(f"{order}+best-fit" for order in ORDERS),
        *PLACEMENTS,
        *policies_found(),
        *(
            f"{scheme}+{order}+{place}"
            for scheme in SCHEMES
            for order, place in (("fifo", "fgd"), ("sjf-expected", "best-fit"))
        ),
        "headroom+preempt+fifo+best-fit",
        "limits?user_gpus=4+fifo+first-fit",
        "limits?user_running=2+easy+sjf-expected+best-fit",
        "limits?user_submitted=6+fair-share+fgd",
    }
)
PEEKS = ("sjf+best-fit",)
"""Orders that go by the truth, and say so."""
CLOCKED = ("genetic",)
"""Policies that search for so many milliseconds."""
EVICTING = ("least-attained-service", "gavel")
"""The orders that evict, and so take no quotas."""
NAMES = sorted(thesis_profiles())


def quick(name: str) -> str:
    """The same policy with less to search."""
    return f"{name}?generations=5" if name in ("genetic", "genetic-paper") else name


class Recorded(User):
    """What users say, and profiles of applications: what a cluster knows that has run them before."""

    def __init__(self) -> None:
        super().__init__()
        self.profiles = thesis_profiles()
        self.speeds = make_speeds("time-sliced")


def learning() -> History:
    """Knows nothing, and learns."""
    return History(recorder=thesis_profiles(), speeds=make_speeds("time-sliced"))


def nodes(count: int = 3) -> tuple[Node, ...]:
    return tuple(Node(f"n{at}", 2, THESIS_GPU, 16_000, 64_000) for at in range(count))


def jobs(seed: int, count: int = 24) -> list[Job]:
    """Live jobs: nobody knows how long they run."""
    draw = random.Random(seed)
    made = []
    for at in range(count):
        gpus = draw.choice((1, 1, 1, 2))
        made.append(
            Job(
                f"j{at}", at * 1500, None, user=f"u{at % 3}", virtual_cluster=("even", "odd")[at % 2],
                retries=2, application=draw.choice((*NAMES, "unheard-of")),
                gpus=gpus,
                share=Share(draw.choice((1000, 1000, 500)), draw.choice((0, 0, 3000))) if gpus == 1 else Share(),
                cpu_milli=1000 * gpus, mem_mib=1000, priority=draw.randrange(3),
                estimate_ms=draw.choice((None, 30_000, 400_000)),
            )
        )  # fmt: skip
    return made


def run_ms(job: Job) -> int:
    return 20_000 + 7_000 * (sum(map(ord, job.id)) % 13)


def account_is_right(loop: LiveLoop) -> None:
    """No job lost, none twice, no GPU over."""
    scheduler = loop.scheduler
    waiting = [task.id for job in scheduler.queue for task in job.tasks or (job,)]
    running = list(scheduler.cluster.running)
    assert sorted([*waiting, *running, *loop.ends]) == sorted(loop.submitted)
    cluster = scheduler.cluster
    owed = cluster.owed()  # after a stranger came, or a node shrank, under what ran there
    for slot, (milli, mem_mib) in held(cluster).items():
        strangers = cluster.strangers_on(slot)
        assert milli + strangers.milli <= max(0, cluster.capacity.milli[slot]) + owed.milli[slot]
        card_mib = max(0, cluster.capacity.gpu_mem_mib[slot])
        assert mem_mib + strangers.mem_mib <= card_mib + owed.gpu_mem_mib[slot]


def known(names: Sequence[str]) -> list[Any]:
    """Each policy with each knowledge; of those with more than a user's, one policy in eight is not slow."""
    kinds = {"user": User, "recorded": Recorded, "history": learning}
    return [
        pytest.param(
            name, know, id=f"{name}-{kind}", marks=[pytest.mark.slow] if kind != "user" and number % 8 else []
        )
        for number, name in enumerate(names)
        for kind, know in kinds.items()
    ]


@pytest.mark.parametrize(("name", "know"), known(EVERY))
def test_no_job_is_lost_none_runs_twice_and_no_gpu_is_over(name: str, know: Callable[[], Knowledge]) -> None:
    knowledge = know()
    goes_through_everything(make_policy(quick(name), Setting(3, knowledge=knowledge)), knowledge)


@pytest.mark.parametrize("name", some(EVERY))
def test_gangs_lose_no_task_though_starts_fail_memory_runs_out_and_nodes_go(name: str) -> None:
    knowledge = Recorded()
    policy = make_policy(quick(name), Setting(3, knowledge=knowledge))
    goes_through_everything(policy, knowledge, gangs={"j2": 3, "j3": 2, "j5": 2, "j7": 3, "j12": 1, "j18": 3})


@pytest.mark.parametrize(("borrow", "reclaim"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("name", [f"{order}+best-fit" for order in ORDERS if order not in EVICTING])
def test_quotas_hold_and_lose_no_job(name: str, borrow: bool, reclaim: bool) -> None:
    quotas = {"even": 4, "odd": 2}

    def within(loop: LiveLoop) -> None:
        account_is_right(loop)
        used = dict.fromkeys(quotas, 0)
        for run in loop.scheduler.cluster.running.values():
            used[run.job.virtual_cluster] += run.job.gpus * run.share.milli
        assert borrow or all(used[name] <= 1000 * quotas[name] for name in quotas)

    knowledge = User()
    setting = Setting(3, quotas, borrow, knowledge, reclaim=reclaim)
    goes_through_everything(make_policy(name, setting), knowledge, within)


@pytest.mark.parametrize(
    "name", ["fifo+best-fit", "easy+sjf-expected+fgd", "preempt+fifo+best-fit", "greedy"]
)
def test_rounds_lose_no_job_though_the_loop_is_woken_late(name: str) -> None:
    knowledge = Recorded()
    inner = make_policy(name, Setting(3, knowledge=knowledge))
    loop = goes_through_everything(Rounds(inner, 10_000), knowledge, late_ms=3)
    assert all(time_ms % 10_000 <= 3 for time_ms, _, _ in loop.starts)


def goes_through_everything(
    policy: Policy,
    knowledge: Knowledge,
    watch: Callable[[LiveLoop], None] = account_is_right,
    late_ms: int = 0,
    gangs: Mapping[str, int] = MappingProxyType({}),
) -> LiveLoop:
    """Drive a policy through all that can happen to jobs and nodes; every job comes to its end once.

    Jobs in `gangs` have two more tasks, of which so many start together.
    """
    loop = LiveLoop(
        Scheduler(Cluster(nodes()), policy, knowledge),
        run_ms,
        running_out={"j3": 1, "j7": 9, "j13": 1},  # of two retries each
        failing={"j2": 1, "j5": 2, "j11": 1},
        watch=watch,
        late_ms=late_ms,
    )
    changed = {job.id: job for job in jobs(4)}
    bigger = (*nodes(2), Node("n2", 2, replace(THESIS_GPU, mem_mib=2 * THESIS_GPU.mem_mib), 32_000, 64_000))
    script: list[tuple[int, object]] = [
        (12_000, Lose("n0")),
        (26_000, Strangers(GpuSlot(1, 0), 1000, 4096)),
        (61_000, Back("n0")),
        (70_000, Nodes((*nodes(3), Node("new", 4, GpuModel("H100", mem_mib=81_920), 64_000, 256_000)))),
        (90_000, Strangers(GpuSlot(1, 0), 0, 0)),
        (120_000, Nodes(nodes(2))),  # n2 and new are gone, with what runs there
        (180_000, Nodes(bigger)),
        (35_000, Withdraw("j1")),
        (36_000, Withdraw("j22")),
        (37_000, Replace(replace(changed["j20"], priority=9, time_limit_ms=10**7))),
        (38_000, Replace(replace(changed["j23"], gpus=1, share=Share(250, 0), cpu_milli=500))),
    ]
    submitted = [
        gang_of([job, replace(job, id=f"{job.id}.1"), replace(job, id=f"{job.id}.2", gpus=0)], gangs[job.id])
        if job.id in gangs
        else job
        for job in jobs(4)
    ]
    loop.run([*((job.submit_ms, job) for job in submitted), *script])
    assert not loop.scheduler.attempts
    assert sorted(loop.ends) == sorted(loop.submitted)
    assert not loop.scheduler.cluster.running
    assert not len(loop.scheduler.queue)
    return loop


@pytest.mark.parametrize(("name", "know"), known([name for name in EVERY if name not in (*PEEKS, *CLOCKED)]))
def test_the_simulator_and_the_loop_start_the_same_jobs_at_the_same_time_on_the_same_gpus(
    name: str, know: Callable[[], Knowledge]
) -> None:
    """Policies see what is believed and nothing else: the live jobs have no work that could be looked at."""
    live = jobs(7)
    knowledge = know()
    loop = LiveLoop(
        Scheduler(Cluster(nodes()), make_policy(quick(name), Setting(3, knowledge=knowledge)), knowledge),
        run_ms,
    )
    script = [(40_000, Lose("n1")), (75_000, Back("n1"))]
    loop.run([*((job.submit_ms, job) for job in live), *script])
    knowledge = know()
    from berth.model import Outage

    events = simulate(
        [replace(job, work_ms=run_ms(job)) for job in live],
        Cluster(nodes()),
        make_policy(quick(name), Setting(3, knowledge=knowledge)),
        knowledge=knowledge,
        outages=[Outage(1, 40_000, 75_000)],
    )
    starts = [
        (event.time_ms, event.job.id, tuple(tuple(slot) for slot in event.slots))
        for event in events
        if event.kind is EventKind.START
    ]
    assert loop.starts == starts


@pytest.mark.parametrize("name", ["greedy", "dqn", "pair-packer"])
def test_tenants_that_outlive_their_forecast_do_not_wake_the_policy_at_every_moment(name: str) -> None:
    asked_ms: list[int] = []
    knowledge = Recorded()
    policy = make_policy(name, Setting(3, knowledge=knowledge))

    class Counting:
        draws = False

        def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
            asked_ms.append(now_ms)
            return policy(queue, cluster, now_ms)

    loop = LiveLoop(Scheduler(Cluster(nodes()), Counting(), knowledge), run_ms)
    loop.run([(job.submit_ms, job) for job in jobs(7)])
    assert len(loop.ends) == len(jobs(7))
    assert len(asked_ms) < 20 * len(jobs(7))


@pytest.mark.parametrize("name", some([name for name in EVERY if name not in CLOCKED]))
def test_noise_of_nothing_is_the_oracle(name: str) -> None:
    from berth.interference import make_interference

    model = make_interference("time-sliced")
    known = [
        replace(job, work_ms=run_ms(job), estimate_ms=None) for job in jobs(9) if job.application in NAMES
    ]
    found = []
    for knowledge in (Oracle(known, model), Noisy(Oracle(known, model), Noise())):
        policy = make_policy(quick(name), Setting(1, knowledge=knowledge))
        events = list(simulate(known, Cluster(nodes()), policy, knowledge=knowledge, interference=model))
        found.append([(e.time_ms, e.kind, e.job.id, e.slots, e.share, e.reason) for e in events])
    assert found[0] == found[1]
