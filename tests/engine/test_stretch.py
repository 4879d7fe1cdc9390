"""A run that begins with a stretch has the events of one that goes job by job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster
from berth.engine import simulate
from berth.engine.stretch import Stretch, one_by_one, stretch_of
from berth.engine.stretch_kernels import AT_A_TIME
from berth.errors import SimulationError
from berth.events import EventBatch
from berth.knowledge import Oracle
from berth.model import Event, EventKind, Job, Node, Reason
from berth.policies import Policy, Setting, make_policy
from tests.engine.examples import clusters, workloads
from tests.examples import examples

pytestmark = pytest.mark.slow  # compiles for half a minute
PLACEMENTS = ("first-fit", "best-fit", "dot-product", "gpu-packing", "gpu-clustering", "fgd")
ORDERS = ("fifo", "priority", "sjf", "sjf-expected", "sjf-requested", "largest-first")
NODES = tuple(Node(f"n{number}", gpus=8) for number in range(12))


@pytest.fixture(autouse=True, scope="module")
def short_runs_too() -> Iterator[None]:
    """Short runs begin with a stretch too, unless they have no job."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("berth.engine.stretch.FEW_JOBS", 1)
        yield


def made(name: str, jobs: list[Job]) -> Policy:
    """The policy of a name, which knows the jobs."""
    return make_policy(name, Setting(3, knowledge=Oracle(jobs)))


def seen(jobs: Iterable[Job], nodes: tuple[Node, ...], policy: Policy, known: list[Job]) -> list[Event | str]:
    """The events, and last the error that ends them, if one does."""
    found: list[Event | str] = []
    try:
        found.extend(simulate(jobs, Cluster(nodes), policy, knowledge=Oracle(known)))
    except SimulationError as error:
        found.append(str(error))
    return found


def check(name: str, jobs: list[Job], nodes: tuple[Node, ...]) -> None:
    """Simulate jobs of a sequence, and job by job: from an iterator that is no sequence."""
    in_a_stretch = seen(jobs, nodes, made(name, jobs), jobs)
    assert in_a_stretch == seen(iter(jobs), nodes, made(name, jobs), jobs)


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


def test_a_job_without_patience_leaves_at_once() -> None:
    """As every pod of an inflation."""
    jobs = [Job("a", 0, 5, patience_ms=0), Job("b", 0, 5, patience_ms=0), Job("c", 6, 5, patience_ms=0)]
    events = simulate(jobs, Cluster([Node("n", gpus=1)]), "fifo+first-fit")
    left = [(event.time_ms, event.job.id) for event in events if event.reason is Reason.PATIENCE]
    assert left == [(0, "b")]
