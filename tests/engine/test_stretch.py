"""A run that begins with a stretch has the events of one that goes job by job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.arrays import IntArray
from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.engine.stretch import Stretch, one_by_one, stretch_of
from berth.engine.stretch_kernels import AT_A_TIME
from berth.errors import BerthError, SimulationError
from berth.events import EventBatch
from berth.knowledge import Oracle
from berth.model import FOREVER_MS, Event, EventKind, GpuSlot, Job, Node, Reason, Share
from berth.policies import Ordered, Policy, Setting, make_policy
from berth.policies.orders import fifo
from berth.policies.placements.by_score import BestFit
from berth.policies.placements.first_fit import FirstFit
from berth.policies.sort_keys import keyed
from berth.statistics import event_columns
from tests.engine.examples import clusters, workloads
from tests.examples import examples

pytestmark = pytest.mark.slow  # compiles for half a minute
PLACEMENTS = ("first-fit", "best-fit", "dot-product", "gpu-packing", "gpu-clustering", "fgd")
ORDERS = ("fifo", "priority", "sjf", "sjf-expected", "sjf-requested", "largest-first")
NODES = tuple(Node(f"n{number}", gpus=8) for number in range(12))


@pytest.fixture(autouse=True, scope="module")
def short_runs_too() -> Iterator[None]:
    """Short runs begin with a stretch too, unless they have no job, and give up places in pools after each call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("berth.engine.stretch.FEW_JOBS", 1)
        patch.setattr("berth.engine.stretch.SPARE", 8)
        yield


def made(name: str, jobs: list[Job]) -> Policy:
    """The policy of a name, which knows the jobs."""
    return make_policy(name, Setting(3, knowledge=Oracle(jobs)))


def seen(
    jobs: Iterable[Job], nodes: tuple[Node, ...], policy: Policy, known: Sequence[Job]
) -> list[Event | str]:
    """The events, and last the error that ends them, if one does."""
    found: list[Event | str] = []
    try:
        found.extend(simulate(jobs, Cluster(nodes), policy, knowledge=Oracle(known)))
    except BerthError as error:
        found.append(str(error))
    return found


def check(name: str, jobs: list[Job], nodes: tuple[Node, ...]) -> None:
    """Simulate jobs of a sequence, and job by job: from an iterator that is no sequence."""
    check_with(lambda: made(name, jobs), jobs, nodes)


def check_with(policy: Callable[[], Policy], jobs: Sequence[Job], nodes: tuple[Node, ...]) -> None:
    """The same, each run with a policy of its own."""
    assert seen(jobs, nodes, policy(), jobs) == seen(iter(jobs), nodes, policy(), jobs)


@settings(max_examples=examples(400), deadline=None)
@given(
    nodes=clusters(),
    jobs=workloads(),
    scheme=st.sampled_from(("", "easy+")),
    order=st.sampled_from(ORDERS),
    place=st.sampled_from(PLACEMENTS),
    patience_ms=st.sampled_from((None, None, 0, "each")),
    odd=st.sampled_from((None, None, "order", "twice", "after", "late")),
)
def test_the_events_are_those_of_a_run_job_by_job(
    nodes: tuple[Node, ...],
    jobs: list[Job],
    scheme: str,
    order: str,
    place: str,
    patience_ms: int | str | None,
    odd: str | None,
) -> None:
    """Whatever is placed, leaves or is refused, and wherever the stretch ends."""
    nodes = tuple(replace(node, labels=()) for node in nodes)
    if not isinstance(patience_ms, str):
        jobs = [replace(job, patience_ms=patience_ms, nodes=min(job.nodes, 1)) for job in jobs]
    last = jobs[-1]
    if odd == "order":
        jobs.append(replace(last, id="before", submit_ms=max(0, last.submit_ms - 1)))
    elif odd == "twice":
        jobs.append(jobs[len(jobs) // 2])
    elif odd is not None:
        jobs.append(replace(last, id="odd", after=("j0",) if odd == "after" else (), patience_ms=7))
        jobs.append(replace(last, id="last"))
    check(f"{scheme}{order}+{place}", jobs, nodes)


def many() -> Iterator[Job]:
    """Jobs with more events than one call tells, some of which run throughout."""
    for number in range(AT_A_TIME):
        work_ms = 50_000 if number % 1000 == 0 else 1 + number * 7 % 23
        limit_ms = (None, 12, 40)[number % 3]
        yield Job(
            f"j{number}",
            number // 2,
            work_ms,
            gpus=(1, 2, 5, 12)[number % 4],
            nodes=number % 4 < 2,
            priority=number % 5,
            time_limit_ms=limit_ms,
        )


def test_several_calls_end_in_an_odd_job() -> None:
    """What runs and waits then goes on job by job."""
    jobs = [*many(), Job("odd", AT_A_TIME, 9, patience_ms=3), Job("last", AT_A_TIME, 9)]
    for name in ("fifo+first-fit", "priority+best-fit", "easy+fifo+first-fit", "easy+priority+best-fit"):
        check(name, jobs, NODES)


def test_events_in_batches_are_the_same() -> None:
    """Each batch has the slots of its own starts."""
    jobs = list(many())
    batches = list(simulate(jobs, Cluster(NODES), "easy+priority+best-fit").batches())
    assert len(batches) > 2
    assert all(isinstance(batch, EventBatch) for batch in batches)
    assert list(one_by_one(batches)) == list(
        simulate(iter(jobs), Cluster(NODES), "easy+priority+best-fit", knowledge=Oracle(jobs))
    )


def begun(jobs: list[Job], nodes: tuple[Node, ...], name: str = "fifo+first-fit") -> Stretch | None:
    """The stretch of a run."""
    return stretch_of(jobs, Cluster(nodes), made(name, jobs))


def test_a_stretch_hands_over_what_it_has_not_come_to() -> None:
    """The jobs of the last instant, as others may come at it, and those behind."""
    jobs = [Job("a", 0, 5), Job("b", 1, 5), Job("c", 1, 5, after=("a",)), Job("d", 4, 5)]
    stretch = begun(jobs, (Node("n", gpus=1),))
    assert stretch is not None
    assert [(event.kind, event.job.id) for event in one_by_one(stretch.batches())] == [
        (EventKind.SUBMIT, "a"),
        (EventKind.START, "a"),
    ]
    assert [(each.job.id, start_ms) for each, start_ms in stretch.take_off()] == [("a", 0)]
    assert (stretch.waiting(), list(stretch.rest()), list(stretch.ids())) == ([], jobs[1:], ["a"])


def test_what_a_stretch_does_not_know_goes_job_by_job() -> None:
    """Labels, random placements, orders by more than the job, gangs of nodes."""
    node, job = Node("n", gpus=2), Job("a", 0, 5)
    assert begun([job], (node,), "easy+priority+best-fit") is not None
    assert begun([job], (replace(node, labels=("x",)),)) is None
    assert begun([replace(job, gpus=2, nodes=2)], (node,)) is None
    assert begun([replace(job, patience_ms=5)], (node,)) is None
    for name in ("fifo+random", "fair-share+best-fit", "preempt+fifo+best-fit", "fifo+worst-fit"):
        assert begun([job], (node,), name) is None


THREE = (Node("n", gpus=3),)


def on_one(*jobs: Job) -> list[Job]:
    """These after a job that takes all GPUs for a while, so that they wait for each other."""
    return [Job("first", 0, 50, gpus=3), *jobs]


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        ("fifo+first-fit", [Job(name, 5, 9, gpus=3, patience_ms=0, time_limit_ms=0) for name in "ab"]),
        ("fifo+first-fit", [Job("a", 3, 9, time_limit_ms=-1), Job("b", 4, 9)]),
        ("fifo+first-fit", on_one(Job("a", 3, 9), Job("b", 4, 9, patience_ms=-1))),
        (
            "easy+fifo+first-fit",
            [
                Job("a", 0, 90, time_limit_ms=FOREVER_MS),
                Job("b", 5, 90, time_limit_ms=FOREVER_MS),
                Job("head", 5, 9, gpus=3),
                Job("filler", 5, 9, time_limit_ms=FOREVER_MS),
            ],
        ),
        *(
            (name, on_one(Job("a", 1, 9, gpus=3), Job("b", 2, 9, gpus=3, priority=priority)))
            for name in ("priority+best-fit", "easy+priority+best-fit")
            for priority in (2**63, -(2**63), 2**64, -(2**64), 2**62, -(2**62))
        ),
        ("deadline-first+best-fit", on_one(Job("a", 1, 9), Job("b", 2, 9, deadline_ms=2**64))),
        ("largest-first+best-fit", [Job("a", 0, 9), Job("b", 2, 9, gpus=10**7)]),
    ],
)
def test_numbers_at_the_edge_have_the_same_events(name: str, jobs: list[Job]) -> None:
    """No length, lengths without end, what is negative, and keys that are too large for kernels."""
    check(name, jobs, THREE)


def fewest_starts() -> Policy:
    """First whose user had started fewest jobs when they were queued."""
    started: dict[str, str] = {}

    def starts(job: Job) -> int:
        return [*started.values()].count(job.user)

    def order(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Job]:
        started.update({name: run.job.user for name, run in cluster.running.items()})
        return queue.by(starts)

    return Ordered(keyed(starts)(order), FirstFit())  # type: ignore[arg-type]  # an order of three arguments


def raising() -> Policy:
    """An order whose key raises for the second job."""

    def refuses(job: Job) -> int:
        return {"first": 0}[job.id]

    return Ordered(keyed(refuses)(lambda queue: queue.by(refuses)), FirstFit())


class Unhashable:
    """A key that can be asked, and no more."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, job: Job) -> int:
        """The last first."""
        return -job.submit_ms


def unhashable() -> Policy:
    """An order by that key."""
    key = Unhashable()
    return Ordered(keyed(key)(lambda queue: iter(sorted(queue, key=key))), FirstFit())


@pytest.mark.parametrize("policy", [fewest_starts, raising, unhashable])
def test_a_key_of_a_users_own_is_asked_when_a_job_is_queued(policy: Callable[[], Policy]) -> None:
    """For it may change, fail, or be of any type."""
    users = "abac"
    jobs = on_one(*(Job(f"j{at}", 1 + at, 9, gpus=3, user=user) for at, user in enumerate(users)))
    jobs[0] = replace(jobs[0], user="a")
    check_with(policy, jobs, THREE)


class Reversed(BestFit):
    """Slots of parts of GPUs in another order."""

    def slots(self, node: int, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...]:
        """The last first."""
        return super().slots(node, job, cluster)[::-1]


class Several(BestFit):
    """Chooses the nodes of every job by itself."""

    draws = True

    def several(self, scores: IntArray, cluster: Cluster, wanted: int) -> list[int] | None:
        """The last that fit."""
        fitting = np.flatnonzero(scores >= 0)[-wanted:]
        return fitting.tolist() if len(fitting) == wanted else None


@pytest.mark.parametrize("place", [Reversed, Several])
def test_a_placement_that_changes_what_a_kernel_chooses_does_so(place: type[BestFit]) -> None:
    """Also in a sequence of jobs."""
    jobs = [Job("a", 0, 9, gpus=2, share=Share(500)), Job("b", 1, 9)]
    check_with(lambda: Ordered(fifo, place()), jobs, NODES)


class WithoutSlices(Sequence[Job]):
    """Jobs that can be had one at a time."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def __getitem__(self, at: int) -> Job:  # type: ignore[override]
        if not isinstance(at, int):
            raise TypeError("no slices")
        return self._jobs[at]


def test_a_sequence_needs_no_slices() -> None:
    """Also where its stretch ends early."""
    jobs = [Job("a", 0, 5), Job("b", 1, 5), Job("c", 1, 5, after=("a",)), Job("d", 4, 5)]
    check_with(lambda: made("fifo+first-fit", jobs), WithoutSlices(jobs), THREE)


def test_batches_after_single_events_have_the_rest() -> None:
    """And the other way round there is an error, as the jobs of earlier batches are not known."""
    jobs = [Job("a", 0, 5), Job("b", 1, 5)]
    every = list(simulate(jobs, Cluster(NODES), "fifo+first-fit"))
    events = simulate(jobs, Cluster(NODES), "fifo+first-fit")
    assert [next(events), *one_by_one(events.batches())] == every
    assert event_columns(simulate(jobs, Cluster(NODES), "fifo+first-fit")).time_ms.tolist() == [
        event.time_ms for event in every
    ]

    jobs = list(many())
    events = simulate(jobs, Cluster(NODES), "fifo+first-fit")
    batches = events.batches()
    first = next(batches)
    with pytest.raises(SimulationError, match="take all batches of a simulation, or none"):
        next(events)
    assert list(one_by_one([first, *batches])) == list(simulate(jobs, Cluster(NODES), "fifo+first-fit"))
    assert list(events) == []


def test_a_job_without_patience_leaves_at_once() -> None:
    """As every pod of an inflation."""
    jobs = [Job("a", 0, 5, patience_ms=0), Job("b", 0, 5, patience_ms=0), Job("c", 6, 5, patience_ms=0)]
    events = simulate(jobs, Cluster([Node("n", gpus=1)]), "fifo+first-fit")
    left = [(event.time_ms, event.job.id) for event in events if event.reason is Reason.PATIENCE]
    assert left == [(0, "b")]


def test_what_is_no_job_is_named() -> None:
    """As it is job by job."""
    jobs: Any = [Job("a", 0, 10), "b"]
    with pytest.raises(SimulationError, match=r"'b' is among the jobs; expected each to be a berth\.Job"):
        list(simulate(jobs, Cluster(NODES), "fifo"))
