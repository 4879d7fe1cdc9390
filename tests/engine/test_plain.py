"""Plain runs: the kernel that does many instants at once, held against the loop that does one."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice, zip_longest
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster, Queue
from berth.engine import plain, simulate
from berth.engine.plain import plain_run
from berth.errors import BerthError, SimulationError
from berth.history.store.events import write_events
from berth.knowledge import Oracle
from berth.model import FOREVER_MS, Event, Job, Node, Reason, Share
from berth.policies import ORDERS, Policy, Setting, make_policy
from berth.policies.protocol import Decision
from berth.traces import nodes_of, read_nodes, read_trace
from tests.engine.examples import clusters
from tests.examples import examples

PLACEMENTS = ("first-fit", "best-fit", "dot-product", "gpu-packing", "gpu-clustering", "fgd", "worst-fit")
POLICIES = [f"{order}+{place}" for order in ORDERS for place in PLACEMENTS]


class InThatLoop:
    """Any policy as one of which nothing is known: it is asked at each instant."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        return self.policy(queue, cluster, now_ms)


@st.composite
def workloads(draw: st.DrawFn) -> list[Job]:
    """Up to 40 jobs that a plain run can take, often several at one instant; in some an odd one among them."""
    impatient = draw(st.booleans())
    odd_at = draw(st.sampled_from((-1, -1, 0, 3, 12)))
    jobs: list[Job] = []
    now_ms = 0
    for number in range(draw(st.integers(1, 40))):
        now_ms += draw(st.sampled_from((0, 0, 1, 5, 20)))
        gpus, nodes = draw(
            st.sampled_from(((1, 1), (1, 1), (0, 1), (2, 1), (2, 2), (4, 2), (1, 0), (3, 0), (6, 0)))
        )
        part = draw(st.sampled_from((1000, 1000, 500, 300)))
        jobs.append(
            Job(
                id=f"j{number}",
                submit_ms=now_ms,
                work_ms=draw(st.sampled_from((0, 0, 1, 5, 20, 40, FOREVER_MS))),
                gpus=gpus,
                nodes=nodes,
                share=Share(part, draw(st.sampled_from((0, 3000)))),
                cpu_milli=draw(st.sampled_from((0, 1000, 3001))),
                models=draw(st.sampled_from(((), (), ("V100",)))),
                time_limit_ms=draw(st.sampled_from((None, None, 0, 10))),
                estimate_ms=draw(st.sampled_from((None, 5))),
                priority=draw(st.integers(0, 2)),
                patience_ms=(0 if impatient else None) if number != odd_at else 7,
                after=("j0",) if number == odd_at + 1 and odd_at >= 0 and number else (),
            )
        )
    return jobs


def told(jobs: list[Job], cluster: Cluster, policy: Policy) -> tuple[list[Event], str]:
    """The events, and the error that ended them."""
    events: list[Event] = []
    try:
        events.extend(simulate(jobs, cluster, policy, knowledge=Oracle(jobs)))
    except BerthError as error:
        return events, f"{type(error).__name__}: {error}"
    return events, ""


@settings(max_examples=examples(150), deadline=None)
@given(
    nodes=clusters(),
    jobs=workloads(),
    name=st.sampled_from(POLICIES),
    at_a_time=st.sampled_from((1, 3, 1024)),
)
def test_the_events_are_those_of_the_loop(
    nodes: tuple[Node, ...], jobs: list[Job], name: str, at_a_time: int
) -> None:
    cluster = Cluster(nodes)
    looped = make_policy(name, Setting(knowledge=Oracle(jobs)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "AT_A_TIME", at_a_time)
        in_kernel = told(jobs, cluster, make_policy(name, Setting(knowledge=Oracle(jobs))))
    assert in_kernel == told(jobs, cluster, InThatLoop(looped))


@settings(max_examples=examples(25), deadline=None)
@given(nodes=clusters(), jobs=workloads(), name=st.sampled_from(POLICIES))
def test_the_file_of_events_is_that_of_the_loop_byte_for_byte(
    nodes: tuple[Node, ...], jobs: list[Job], name: str
) -> None:
    knowledge = Oracle(jobs)
    policies = (make_policy(name, Setting(knowledge=knowledge)) for _ in range(2))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for policy in (next(policies), InThatLoop(next(policies))):
            events = simulate(jobs, Cluster(nodes), policy, knowledge=knowledge)
            try:
                count = write_events(events, nodes, Path(folder, "events.parquet"))
                found.append((count, Path(folder, "events.parquet").read_bytes()))
            except BerthError as error:
                found.append((0, str(error).encode()))
    assert found[0] == found[1]


REAL = {
    "philly": ("philly/sia_philly.csv.gz", "16x8:V100"),
    "helios": ("helios/helios_venus_2vc_sept.csv.gz", "12x8:V100"),
    "openb": ("openb_v2023/openb_pod_list_gpuspec10.csv.gz", ""),
    "pai": ("pai_v2020/pai2020_subset_via_plebiscitotest.csv.gz", ""),
}


@pytest.mark.parametrize("name", ["fifo+first-fit", "sjf+best-fit", "fifo+fgd"])
@pytest.mark.parametrize("trace", REAL)
def test_real_jobs_give_the_events_of_the_loop(
    trace: str, name: str, real_data: Callable[[str], Path]
) -> None:
    """The first of each trace, in a tenth of the time that they took to come."""
    path, described = REAL[trace]
    source = real_data(path)
    nodes = read_nodes(described) if described else (nodes_of(source) or ())[:60]
    jobs = [
        replace(job, submit_ms=job.submit_ms // 10, patience_ms=None, labels=())
        for job in islice(read_trace(source).jobs(), 600)
    ]
    knowledge = Oracle(jobs)
    policy = make_policy(name, Setting(knowledge=knowledge))
    cluster = Cluster([replace(node, labels=()) for node in nodes])
    run = plain_run(iter(jobs), cluster.emptied(), policy, knowledge)
    assert run is not None
    in_kernel = run.events(lambda left: pytest.fail(f"asks for more: {next(left)}"))
    looped = make_policy(name, Setting(knowledge=knowledge))
    in_loop = simulate(jobs, cluster, InThatLoop(looped), knowledge=knowledge)
    for here, there in zip_longest(in_kernel, in_loop):
        assert here == there


def test_an_interruption_while_jobs_are_drawn_ends_the_run_after_what_had_happened() -> None:
    """As Ctrl-C does; jobs are drawn a thousand at a time."""
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
    before = told(jobs, cluster, InThatLoop(make_policy("fifo+first-fit")))[0]
    assert len(seen) > 3 * 2000
    assert seen == before[: len(seen)]


@pytest.mark.parametrize("place", [place for place in PLACEMENTS if place != "worst-fit"])
@pytest.mark.parametrize("order", ["fifo", "sjf"])
def test_such_policies_run_in_the_kernel(order: str, place: str) -> None:
    """Without any `Run`, from the first job to the last."""
    jobs = [Job(f"j{number}", number // 3, 5, gpus=1 + number % 2) for number in range(300)]
    knowledge = Oracle(jobs)
    cluster = Cluster([Node("a", gpus=4), Node("b", gpus=2)])
    policy = make_policy(f"{order}+{place}", Setting(knowledge=knowledge))
    run = plain_run(iter(jobs), cluster, policy, knowledge)
    assert run is not None
    assert len(list(run.events(lambda left: pytest.fail(f"asks for more: {list(left)}")))) == 3 * len(jobs)


def test_what_a_plain_run_knew_of_jobs_counts_for_those_that_come_after_them() -> None:
    """One had finished, one was ended at its limit, one never fitted, one still runs, one waits."""
    jobs = [
        Job("done", 0, 2),
        Job("late", 0, 9, time_limit_ms=3),
        Job("large", 0, 1, gpus=9),
        Job("runs", 6, 50),
    ]
    jobs += [
        Job("waits", 7, 1),
        *(Job(f"after {job.id}", 20, 1, after=(job.id,)) for job in [*jobs, Job("waits", 7, 1)]),
    ]
    cluster = Cluster([Node("a", gpus=1)])
    told_of = told(jobs, cluster, make_policy("fifo+first-fit"))
    assert told_of == told(jobs, cluster, InThatLoop(make_policy("fifo+first-fit")))
    assert {event.job.id for event in told_of[0] if event.reason is Reason.DEPENDENCY} == {
        "after late",
        "after large",
    }


def test_a_job_without_patience_has_until_all_that_end_at_its_instant_have_ended() -> None:
    """The room of a job of no length is free again at once, and so on; then it leaves."""
    jobs = [Job(f"short{number}", 5, 0, patience_ms=0) for number in range(3)]
    jobs += [Job("long", 5, 9, patience_ms=0), Job("leaves", 5, 1, patience_ms=0)]
    cluster = Cluster([Node("a", gpus=1)])
    events, error = told(jobs, cluster, make_policy("fifo+first-fit"))
    assert (events, error) == told(jobs, cluster, InThatLoop(make_policy("fifo+first-fit")))
    assert [event.job.id for event in events if event.reason is Reason.PATIENCE] == ["leaves"]


def test_more_events_than_are_told_at_once() -> None:
    """A thousand jobs a millisecond, in a queue that grows, in rows that are used again."""
    jobs = [Job(f"j{number}", number // 1000, 2 + number % 5) for number in range(6000)]
    jobs += [Job(f"k{number}", 40_000 + number, 1) for number in range(100)]
    cluster = Cluster([Node("a", gpus=3)])
    policies = [make_policy("sjf+best-fit", Setting(knowledge=Oracle(jobs))) for _ in range(2)]
    assert told(jobs, cluster, policies[0]) == told(jobs, cluster, InThatLoop(policies[1]))


@pytest.mark.parametrize(
    ("bad", "told_of_it"),
    [
        (Job("a", 5, 1), "two jobs have the id 'a'"),
        (Job("c", 3, 1), "give the jobs in order of submission"),
        (Job("c", 5, None), "a simulation needs a whole number"),
        (Job("c", 5, 1, gpus=-1), "asks for -1 GPUs"),
    ],
)
def test_what_happened_before_a_bad_job_is_told_before_its_error(bad: Job, told_of_it: str) -> None:
    cluster = Cluster([Node("a", gpus=1)])
    jobs = [Job("a", 0, 2), Job("b", 4, 9), bad]
    events, error = told(jobs, cluster, make_policy("fifo+first-fit"))
    assert told_of_it in error
    assert (events, error) == told(jobs, cluster, InThatLoop(make_policy("fifo+first-fit")))
    assert events


def test_an_error_of_who_gives_the_jobs_comes_after_what_happened_before_it() -> None:
    def given() -> Iterator[Job]:
        yield Job("a", 0, 2)
        yield Job("b", 4, 9)
        raise SimulationError("the file ends here")

    events: list[Event] = []
    with pytest.raises(SimulationError, match="the file ends here"):
        events.extend(simulate(given(), Cluster([Node("a", gpus=1)]), "fifo+first-fit"))
    seen = [f"{event.time_ms} {event.kind} {event.job.id}" for event in events]
    assert seen == ["0 submit a", "0 start a", "2 finish a", "4 submit b"]
