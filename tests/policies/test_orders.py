"""Every order and scheme: gangs, priorities and outages under each, and what each of them promises."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from math import log

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from berth.cluster import Account, Cluster, Queue
from berth.cluster.usage import HALF_LIFE_MS
from berth.engine import simulate
from berth.errors import PolicyError, SettingError
from berth.knowledge import History, Oracle
from berth.model import Event, EventKind, Job, Node, Outage, Placement, Share
from berth.policies import ORDERS, SCHEMES, Ordered, Setting, make_policy
from berth.policies.orders import LongestExpected
from berth.policies.schemes.easy import Easy
from berth.policies.schemes.quotas import check_quotas
from berth.policies.sort_keys import ExpectedMs
from tests.every_policy import some
from tests.examples import examples

EVERY = [*ORDERS, *(f"{scheme}+{order}" for scheme in SCHEMES for order in ORDERS)]
EVERY = [
    name
    for name in EVERY
    if name.partition("+")[0] not in ("easy", "conservative", "passing")
    or not name.endswith(("least-attained-service", "gavel"))
]  # they evict by themselves: no reservation would hold
START, FINISH, EVICT = EventKind.START, EventKind.FINISH, EventKind.EVICT


def starts(events: list[Event]) -> list[tuple[str, int]]:
    return [(event.job.id, event.time_ms) for event in events if event.kind is START]


def run(jobs: list[Job], nodes: list[Node], policy: object, **more: object) -> list[Event]:
    return list(simulate(jobs, Cluster(nodes), policy, **more))  # type: ignore[arg-type]


@st.composite
def workloads(draw: st.DrawFn) -> list[Job]:
    """Jobs of a few users and virtual clusters with priorities; whole GPUs, parts, gangs and spreads."""
    jobs = []
    now_ms = 0
    for number in range(draw(st.integers(1, 20))):
        now_ms += draw(st.integers(0, 10))
        gpus, nodes = draw(st.sampled_from(((1, 1), (1, 1), (2, 1), (4, 2), (3, 0), (0, 1))))
        part = gpus == 1 and draw(st.booleans())
        work_ms = draw(st.integers(1, 50))
        jobs.append(
            Job(
                f"j{number}",
                now_ms,
                work_ms,
                user=draw(st.sampled_from("ab")),
                virtual_cluster=draw(st.sampled_from("xyz")),
                gpus=gpus,
                nodes=nodes,
                share=Share(draw(st.integers(100, 900))) if part else Share(),
                priority=draw(st.integers(0, 2)),
                keeps_work=draw(st.booleans()),
                estimate_ms=draw(st.sampled_from((None, work_ms, 60))),
            )
        )
    return jobs


NODES = [Node("a", 4), Node("b", 2), Node("c", 2)]


@pytest.mark.parametrize("name", some(EVERY))
@settings(max_examples=examples(10), deadline=None)
@given(jobs=workloads())
def test_every_job_finishes_once_within_what_there_is_and_nobody_changes_what_is_shown(
    name: str, jobs: list[Job]
) -> None:
    inner = make_policy(f"{name}+best-fit", Setting(1, knowledge=Oracle(jobs)))

    def watched(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[object]:
        deciding = iter(inner(queue, cluster, now_ms))
        while True:
            before = cluster.digest()
            decision = next(deciding, None)
            assert cluster.digest() == before
            if decision is None:
                return
            yield decision

    held: dict[tuple[int, int], int] = {}
    finished: list[str] = []
    outages = [Outage(1, 15, 30), Outage(0, 40, 45)]
    for event in simulate(jobs, Cluster(NODES), watched, outages=outages):  # type: ignore[arg-type]
        sign = {START: 1, FINISH: -1, EVICT: -1, EventKind.FAIL: -1}.get(event.kind, 0)
        for slot in event.slots:
            if sign and slot.index >= 0:
                held[slot] = held.get(slot, 0) + sign * event.share.milli
                assert 0 <= held[slot] <= 1000
        if event.kind is START and event.job.nodes > 1:
            assert len({slot.node for slot in event.slots}) == event.job.nodes
        if event.kind is FINISH:
            finished.append(event.job.id)
    assert sorted(finished) == sorted(job.id for job in jobs)


@pytest.mark.parametrize("name", some(EVERY))
def test_the_same_jobs_give_the_same_events(name: str) -> None:
    jobs = [
        Job(f"j{n}", n // 3, 5 + n * 7 % 11, user="ab"[n % 2], gpus=1 + n % 3, priority=n % 2)
        for n in range(40)
    ]
    assert run(jobs, NODES, name) == run(jobs, NODES, name)


def test_largest_first_starts_the_job_with_the_most_gpus() -> None:
    jobs = [
        Job("one", 0, 9),
        Job("four", 0, 9, gpus=4),
        Job("half", 0, 9, share=Share(500)),
        Job("two", 0, 9, gpus=2),
    ]
    assert [name for name, _ in starts(run(jobs, [Node("a", 8)], "largest-first"))] == [
        "four",
        "two",
        "one",
        "half",
    ]


def test_fair_share_gives_turns_by_gpu_time_used_and_then_by_gpus_held() -> None:
    jobs = [Job(f"ann{n}", 0, 100, "ann") for n in range(4)] + [
        Job(f"bob{n}", 0, 100, "bob") for n in range(4)
    ]
    assert starts(run(jobs, [Node("a", 2)], "fair-share"))[:4] == [
        ("ann0", 0), ("bob0", 0), ("ann1", 100), ("bob1", 100),
    ]  # fmt: skip
    # Bob has had nothing when Ann's first job ends, and comes before her earlier jobs.
    late = [*jobs[:4], replace(jobs[4], submit_ms=50)]
    assert starts(run(late, [Node("a", 1)], "fair-share"))[:3] == [("ann0", 0), ("bob0", 100), ("ann1", 200)]


class NaiveFairShare:
    """Of all waiting jobs the one of the user with the least, found anew after each.

    In the units in which `FairShare` compares users, since of equal shares the last digit decides.
    """

    def __init__(self) -> None:
        self.origin_ms: int | None = None

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Job]:
        left, users = list(queue), cluster.usage().users
        if self.origin_ms is None:
            self.origin_ms = now_ms
        while left:
            serials = {job.id: serial for serial, job in enumerate(queue)}
            left = [job for job in left if job in queue]
            shares = {job.user: self.share(users.get(job.user, Account()), now_ms) for job in left}
            left.sort(key=lambda job: (*shares[job.user], serials[job.id]))
            if left:
                yield left.pop(0)

    def share(self, account: Account, now_ms: int) -> tuple[float, int]:
        assert self.origin_ms is not None
        lasting_ms, held = HALF_LIFE_MS / log(2), account.held_milli
        then, now = (2.0 ** ((ms - self.origin_ms) / HALF_LIFE_MS) for ms in (account.as_of_ms, now_ms))
        share = account.past * then - held * (lasting_ms * then) + held * (lasting_ms * now)
        assert share / now == pytest.approx(account.used(now_ms), abs=0.1)
        return share, held


@settings(max_examples=examples(40), deadline=None)
@example(seed=147, users=6, patient=False)
@given(seed=st.integers(0, 10**6), users=st.integers(1, 9), patient=st.booleans())
def test_fair_share_serves_as_if_it_looked_at_every_user_each_time(
    seed: int, users: int, patient: bool
) -> None:
    draw = random.Random(seed)
    submits = sorted(draw.randrange(10**6) for _ in range(60))
    jobs = [
        Job(
            f"j{n}", submit_ms, draw.randrange(1, 200_000), user=f"u{draw.randrange(users)}",
            gpus=draw.choice((0, 1, 1, 2, 4)), labels=() if patient else draw.choice(((), ("x",))),
        )
        for n, submit_ms in enumerate(submits)
    ]  # fmt: skip
    nodes = [Node("a", 4, labels=() if patient else ("x",)), Node("b", 4)]
    place = make_policy("first-fit").place  # type: ignore[attr-defined]
    assert run(jobs, nodes, "fair-share") == run(jobs, nodes, Ordered(NaiveFairShare(), place))


def test_least_attained_service_takes_gpus_from_who_has_had_an_hour_of_them() -> None:
    hour_ms = 3_600_000
    jobs = [Job("long", 0, 3 * hour_ms, keeps_work=True), Job("short", 600_000, 1000)]
    events = run(jobs, [Node("a", 1)], "least-attained-service")
    told = [event for event in events if event.kind is not EventKind.SUBMIT]
    assert [(event.job.id, event.kind.value, event.time_ms) for event in told] == [
        ("long", "start", 0), ("long", "evict", hour_ms), ("short", "start", hour_ms),
        ("short", "finish", hour_ms + 1000), ("long", "start", hour_ms + 1000), ("long", "finish", 3 * hour_ms + 1000),
    ]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_a_gang_of_a_higher_priority_evicts_as_few_as_it_needs_under_every_order(order: str) -> None:
    nodes = [Node("a", 2), Node("b", 2), Node("c", 2)]
    low = [Job(f"low{n}", 0, 1000, f"u{n}", gpus=1, time_limit_ms=1000, estimate_ms=1000) for n in range(6)]
    gang = Job("gang", 10, 50, "boss", gpus=4, nodes=2, priority=1, time_limit_ms=50, estimate_ms=50)
    events = run([*low, gang], nodes, f"preempt+{order}")
    evicted = [event.job.id for event in events if event.kind is EVICT]
    assert (len(evicted), dict(starts(events))["gang"]) == (4, 10)
    assert sum(event.kind is FINISH for event in events) == 7


@pytest.mark.parametrize("order", ORDERS)
def test_who_is_evicted_waits_before_those_of_a_lower_priority_under_every_order(order: str) -> None:
    """On two nodes of 4 GPUs: what the urgent one leaves free is not enough for the gang, and not for the last."""
    jobs = [
        Job("gang", 0, 100, "c", gpus=8, nodes=2, priority=5, time_limit_ms=100, estimate_ms=100),
        Job("last", 10, 10, "b", gpus=4, time_limit_ms=10, estimate_ms=10),
        Job("urgent", 40, 10, "e", gpus=4, priority=9, time_limit_ms=10, estimate_ms=10),
    ]
    events = run(jobs, [Node("x", 4), Node("y", 4)], f"preempt+{order}")
    assert [event.job.id for event in events if event.kind is EVICT] == ["gang"]
    assert starts(events) == [("gang", 0), ("urgent", 40), ("gang", 50), ("last", 150)]


def test_nobody_is_evicted_for_an_equal_or_in_vain() -> None:
    running = Job("running", 0, 100, priority=1)
    for other in (Job("equal", 5, 10, priority=1), Job("lower", 5, 10, priority=0)):
        assert dict(starts(run([running, other], [Node("a", 1)], "preempt")))[other.id] == 100
    vain = [Job("fixed", 0, 100, priority=9), Job("low", 0, 100), Job("wide", 5, 10, gpus=2, priority=5)]
    assert [event for event in run(vain, [Node("a", 2)], "preempt") if event.kind is EVICT] == []


def test_easy_fills_the_gap_before_the_reservation_and_beside_it() -> None:
    """On 4 GPUs: 3 run until 100, the head wants 4 then. What ends by then may start, and nothing that does not."""
    jobs = [
        Job("runs", 0, 100, gpus=3),
        Job("head", 1, 50, gpus=4),
        Job("late", 2, 99),
        Job("fits", 3, 97),
        Job("next", 4, 5),
    ]
    assert starts(run(jobs, [Node("a", 4)], "easy")) == [
        ("runs", 0), ("fits", 3), ("head", 100), ("late", 150), ("next", 150),
    ]  # fmt: skip
    # With a head of 2 GPUs on a larger machine a long job may run beside the reservation.
    wide = [
        Job("runs", 0, 100, gpus=5),
        Job("head", 1, 50, gpus=4),
        Job("long", 2, 10**6),
        Job("more", 3, 10**6, gpus=2),
    ]
    assert starts(run(wide, [Node("a", 6)], "easy")) == [
        ("runs", 0),
        ("long", 2),
        ("head", 100),
        ("more", 150),
    ]


def test_easy_goes_by_limits_then_estimates_then_the_truth() -> None:
    assert [
        ExpectedMs(Oracle(), stated=True)(Job("a", 0, 9, time_limit_ms=5, estimate_ms=7)),
        ExpectedMs(Oracle(), stated=True)(Job("b", 0, 9, estimate_ms=7)),
        ExpectedMs(Oracle(), stated=True)(Job("c", 0, 9)),
    ] == [5, 7, 9]
    # The running job says 100 and ends at 20: the head starts then, and who was let in by the estimate had to fit it.
    jobs = [Job("runs", 0, 20, gpus=3, estimate_ms=100), Job("head", 1, 50, gpus=4), Job("fill", 2, 60)]
    assert starts(run(jobs, [Node("a", 4)], "easy")) == [("runs", 0), ("fill", 2), ("head", 62)]


@settings(max_examples=examples(60), deadline=None)
@given(
    jobs=workloads(),
    order=st.sampled_from(("fifo", "sjf", "largest-first")),
    partitions=st.sampled_from((0, 2)),
)
def test_easy_never_delays_the_reservation_of_the_first_job_where_ends_are_known(
    jobs: list[Job], order: str, partitions: int
) -> None:
    """Whoever is first in the queue of its partition starts no later than if nobody had been let in before it."""
    jobs = [replace(job, estimate_ms=None) for job in jobs]
    nodes = NODES
    if partitions:
        nodes = [replace(node, labels=("AB"[n % 2],)) for n, node in enumerate([*NODES, Node("d", 4)])]
        jobs = [replace(job, labels=("AB"[n % 2],)) for n, job in enumerate(jobs)]
    promised: dict[str, int] = {}
    easy = Easy(make_policy(f"{order}+best-fit").order, make_policy("best-fit").place, Oracle())  # type: ignore[attr-defined]

    def watched(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        yield from easy(queue, cluster, now_ms)
        for head, time_ms in easy.reserved_ms.items():
            promised.setdefault(head, max(time_ms, now_ms))

    events = list(simulate(jobs, Cluster(nodes), watched))
    started = dict(starts(events))
    if order == "fifo":
        assert {name: started[name] <= at for name, at in promised.items()} == dict.fromkeys(promised, True)
    assert sum(event.kind is FINISH for event in events) == len(jobs)


def test_easy_reserves_anew_when_an_idle_node_is_lost() -> None:
    """The head was to start at 50 on B and C; without B it starts at 100 on A and C, if nobody takes of A."""
    jobs = [
        Job("a", 0, 100, gpus=2),
        Job("c", 0, 50, gpus=3),
        Job("head", 1, 10, gpus=6, nodes=2),
        Job("wide", 2, 200, gpus=3),
        Job("fill", 6, 200),
    ]
    nodes = [Node("A", 3), Node("C", 3), Node("B", 3)]
    found = starts(run(jobs, nodes, "easy", outages=[Outage(2, 3, None)]))
    assert found == [("a", 0), ("c", 0), ("head", 100), ("wide", 110), ("fill", 110)]


def test_an_evicting_order_asks_to_be_woken_in_each_run() -> None:
    hour_ms = 3_600_000
    jobs = [Job("a", 0, 3 * hour_ms), Job("b", 1, hour_ms // 2)]
    policy = make_policy("least-attained-service")
    for later_ms in (0, 3 * hour_ms // 2):
        found = run(
            [replace(job, submit_ms=job.submit_ms + later_ms) for job in jobs], [Node("n", 1)], policy
        )
        assert starts(found) == [
            ("a", later_ms), ("b", later_ms + hour_ms), ("a", later_ms + 3 * hour_ms // 2),
        ]  # fmt: skip


def test_easy_reserves_for_the_first_job_of_each_partition() -> None:
    """Without a reservation of its own the head of B would wait for the long job that fits beside it."""
    nodes = [Node("a", 2, labels=("A",)), Node("b", 2, labels=("B",))]
    jobs = [
        Job("a-runs", 0, 100, labels=("A",)),
        Job("b-runs", 0, 60, labels=("B",)),
        Job("a-head", 1, 100, gpus=2, labels=("A",)),
        Job("b-head", 2, 100, gpus=2, labels=("B",)),
        Job("b-long", 3, 1000, labels=("B",)),
        Job("b-short", 4, 50, labels=("B",)),
        Job("any-long", 5, 90),  # ends before the head of A starts, and not before that of B
    ]
    assert starts(run(jobs, nodes, "easy")) == [
        ("a-runs", 0), ("b-runs", 0), ("b-short", 4), ("any-long", 5), ("b-head", 60), ("a-head", 100), ("b-long", 160),
    ]  # fmt: skip


def test_partitions_queue_apart_and_those_who_may_run_anywhere_wait_for_both() -> None:
    nodes = [Node("a", 2, labels=("A",)), Node("b", 2, labels=("B",))]
    jobs = [
        Job("a1", 0, 100, labels=("A",)),
        Job("a2", 1, 100, gpus=2, labels=("A",)),
        Job("a3", 2, 1, labels=("A",)),
        Job("b1", 3, 1, labels=("B",)),
        Job("any", 4, 1),
    ]
    assert starts(run(jobs, nodes, "fifo")) == [("a1", 0), ("b1", 3), ("a2", 100), ("a3", 200), ("any", 200)]


def test_quotas_hold_and_idle_gpus_are_lent_until_their_owner_waits() -> None:
    def job(name: str, submit_ms: int, pool: str) -> Job:
        return Job(name, submit_ms, 100, virtual_cluster=pool)

    jobs = [job("x0", 0, "x"), job("x1", 0, "x"), job("x2", 0, "x"), job("y0", 10, "y"), job("y1", 10, "y")]
    quotas = {"x": 1, "y": 2}

    def begun(borrow: bool) -> list[tuple[str, int]]:
        policy = make_policy("fifo+best-fit", Setting(quotas=quotas, borrow=borrow))
        return starts(list(simulate(jobs, Cluster([Node("a", 3)]), policy)))

    assert begun(False) == [("x0", 0), ("y0", 10), ("y1", 10), ("x1", 100), ("x2", 200)]
    assert begun(True) == [("x0", 0), ("x1", 0), ("x2", 0), ("y0", 100), ("y1", 100)]


def test_quotas_that_cannot_be_are_refused() -> None:
    with pytest.raises(SettingError, match="the quota of 'x' is 9 GPUs; the cluster has only 8"):
        check_quotas({"x": 9}, NODES)
    with pytest.raises(SettingError, match="the quota of 'x' is -1 GPUs; expected 0 or more"):
        check_quotas({"x": -1}, NODES)
    for name, why in {
        "easy": "easy reserves nodes by when they are free",
        "preempt": "an order that evicts says it again",
        "least-attained-service": "an order that evicts says it again",
        "genetic": "it decides on all waiting jobs by itself",
    }.items():
        with pytest.raises(PolicyError, match=f"'{name}' has no quotas: .*{why}"):
            make_policy(name, Setting(quotas={"x": 1}))


def test_a_scheme_goes_with_any_order_and_placement_but_not_alone_with_another() -> None:
    assert isinstance(make_policy("easy+sjf+best-fit"), Easy)
    assert isinstance(make_policy("easy"), Easy)
    for wrong in ("easy+preempt+fifo", "easy+fifo+best-fit+fgd", "easy+least-attained-service", "sjf+easy"):
        with pytest.raises(PolicyError):
            make_policy(wrong)


def test_by_priority_the_higher_goes_first_and_nothing_that_runs_is_stopped() -> None:
    jobs = [
        Job("runs", 0, 10),
        Job("low", 1, 10),
        Job("high", 2, 10, priority=5),
        Job("second", 3, 10, priority=5),
    ]
    assert starts(run(jobs, [Node("a", gpus=1)], "priority")) == [
        *(("runs", 0), ("high", 10), ("second", 20), ("low", 30)),
    ]


def test_the_longest_first_tries_an_application_that_was_not_seen_before_those_that_were() -> None:
    knowledge, queue = History(), Queue()
    seen = Job("0", 0, None, user="ann", application="seen")
    for run_ms in (10_000, 20_000, 30_000):
        knowledge.worked(seen, run_ms, alone=False)
    for name in ("seen", "new", "also new"):
        queue.add(replace(seen, id=name, application=name))
    assert [job.id for job in LongestExpected(Setting(knowledge=knowledge))(queue)] == [
        "new",
        "also new",
        "seen",
    ]
