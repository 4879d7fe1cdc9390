"""The simulator against the reference: the same events on the same slots, whatever the jobs, cluster and conditions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.card_speeds import ALL_ALIKE, CardSpeeds
from berth.cluster import Cluster
from berth.cluster.outages import Recovery
from berth.engine import simulate
from berth.model import GpuModel, Job, Node, Outage, Reservation, Share
from tests.engine.reference import Reference, Told
from tests.examples import examples

MODELS = (GpuModel("V100", mem_mib=16_000), GpuModel("T4", mem_mib=8_000))
SPEEDS = CardSpeeds({"net": {"V100": 1000, "T4": 400}, "": {"V100": 1500, "T4": 1000}}, "drawn")
PARTS = tuple(Share(milli, mem_mib) for milli in (250, 500, 600) for mem_mib in (0, 5000))
NAMES = {
    "fifo": "fifo+first-fit",
    "deadline-first": "deadline-first+first-fit",
    "easy": "easy+fifo+first-fit",
    "conservative": "conservative+fifo+first-fit",
    "preempt": "preempt+fifo+first-fit",
}


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Node, ...]:
    return tuple(
        Node(
            f"n{at}", draw(st.integers(1, 4)), draw(st.sampled_from(MODELS)),
            draw(st.sampled_from((None, 4000, 16_000))), draw(st.sampled_from((None, 8000, 64_000))),
        )
        for at in range(draw(st.integers(1, 4)))
    )  # fmt: skip


@st.composite
def workloads(draw: st.DrawFn) -> list[Job]:
    jobs: list[Job] = []
    now_ms = 0
    for at in range(draw(st.integers(1, 22))):
        now_ms += draw(st.sampled_from((0, 0, 1, 5, 20)))
        gpus, count = draw(st.sampled_from(((1, 1), (1, 1), (0, 1), (2, 1), (3, 1), (2, 2), (4, 2))))
        is_part = gpus == 1 and draw(st.booleans())
        single = count == 1
        jobs.append(
            Job(
                f"j{at}", now_ms, draw(st.integers(0, 60)), user=draw(st.sampled_from("ab")),
                application=draw(st.sampled_from(("net", "other"))), gpus=gpus, nodes=count,
                share=draw(st.sampled_from(PARTS)) if is_part else Share(),
                cpu_milli=draw(st.sampled_from((0, 1000, 3001))) if single else 0,
                mem_mib=draw(st.sampled_from((0, 500, 3001))) if single else 0,
                models=draw(st.sampled_from(((), (), ("V100",), ("T4",)))),
                priority=draw(st.integers(0, 2)),
                time_limit_ms=draw(st.sampled_from((None, None, None, 15))),
                estimate_ms=draw(st.sampled_from((None, None, 5, 40))),
                keeps_work=draw(st.booleans()),
                patience_ms=draw(st.sampled_from((None, None, None, 0, 15))),
                deadline_ms=draw(st.sampled_from((None, 10, 100))),
                after=(draw(st.sampled_from(jobs)).id,) if jobs and draw(st.integers(0, 7)) == 0 else (),
            )
        )  # fmt: skip
    return jobs


@st.composite
def conditions(draw: st.DrawFn, count: int, reserves: bool) -> dict[str, object]:
    outages = []
    for node in range(count):
        for _ in range(draw(st.integers(0, 2))):
            down_ms = draw(st.integers(0, 80))
            drain_ms = draw(st.sampled_from((0, 0, min(10, down_ms))))
            outages.append(Outage(node, down_ms, down_ms + draw(st.integers(1, 25)), drain_ms))
    reservations = []
    if reserves and draw(st.booleans()):
        start_ms = draw(st.integers(0, 60))
        reservations.append(
            Reservation(
                (draw(st.integers(0, count - 1)),),
                ("a",),
                start_ms,
                start_ms + draw(st.integers(1, 40)),
                draw(st.sampled_from((0, min(5, start_ms)))),
            )
        )
    recovery = draw(
        st.sampled_from(
            (Recovery(), Recovery(7), Recovery(7, 3), Recovery(None, 4), Recovery(5, 2, write_ms=2))
        )
    )
    return {
        "outages": outages, "reservations": reservations, "recovery": recovery,
        "speeds": draw(st.sampled_from((ALL_ALIKE, SPEEDS))),
    }  # fmt: skip


def told(jobs: list[Job], cluster: tuple[Node, ...], policy: str, **under: object) -> list[Told]:
    """What the simulator says."""
    return [
        (each.time_ms, each.kind.value, each.job.id, each.attempt, each.slots, each.reason.value)
        for each in simulate(jobs, Cluster(cluster), NAMES[policy], **under)  # type: ignore[arg-type]
    ]


def wanted(jobs: list[Job], cluster: tuple[Node, ...], policy: str, **under: object) -> list[Told]:
    """What the reference says."""
    reference = Reference(cluster, policy, under["recovery"], under["speeds"])  # type: ignore[arg-type]
    return reference.simulate(jobs, under["outages"], under["reservations"])  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", NAMES)
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_the_simulator_does_what_the_reference_does(policy: str, data: st.DataObject) -> None:
    cluster = data.draw(nodes())
    jobs = data.draw(workloads())
    under = data.draw(conditions(len(cluster), reserves=policy in ("easy", "conservative", "preempt")))
    assert told(jobs, cluster, policy, **under) == wanted(jobs, cluster, policy, **under)
