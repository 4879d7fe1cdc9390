"""Small clusters and jobs at random, for the property tests of the engine."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from berth.interference import Outlook, Tenant
from berth.model import GpuModel, Job, Node, Outage, Share

MODELS = (GpuModel("V100", mem_mib=16_000), GpuModel("T4", mem_mib=8_000))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Node, ...]:
    """One to four nodes of different kinds, one without GPUs among them now and then."""
    nodes = []
    for number in range(draw(st.integers(1, 4))):
        gpus = draw(st.integers(0, 4))
        nodes.append(
            Node(
                f"n{number}",
                gpus=gpus,
                gpu_model=draw(st.sampled_from(MODELS)) if gpus else None,
                cpu_milli=draw(st.sampled_from((None, 4000, 16_000))),
                mem_mib=draw(st.sampled_from((None, 8000, 64_000))),
                labels=draw(st.sampled_from(((), ("fast",)))),
            )
        )
    return tuple(nodes)


@st.composite
def workloads(draw: st.DrawFn) -> list[Job]:
    """Up to 25 jobs in order of submission: parts of a GPU, whole GPUs, gangs, spreads, CPU only."""
    jobs = []
    now_ms = 0
    for number in range(draw(st.integers(1, 25))):
        now_ms += draw(st.sampled_from((0, 0, 1, 5, 20)))
        gpus, nodes = draw(st.sampled_from(((1, 1), (1, 1), (0, 1), (2, 1), (2, 2), (4, 2), (3, 0), (6, 0))))
        part = gpus == 1 and draw(st.booleans())
        jobs.append(
            Job(
                id=f"j{number}",
                submit_ms=now_ms,
                work_ms=draw(st.integers(0, 40)),
                gpus=gpus,
                nodes=nodes,
                share=Share(draw(st.integers(1, 999)), draw(st.integers(0, 9000))) if part else Share(),
                cpu_milli=draw(st.sampled_from((0, 1000, 3001))),
                mem_mib=draw(st.sampled_from((0, 500, 3001))),
                models=draw(st.sampled_from(((), (), ("V100",), ("T4", "V100")))),
                labels=draw(st.sampled_from(((), (), ("fast",)))),
                time_limit_ms=draw(st.sampled_from((None, None, 10))),
                estimate_ms=draw(st.sampled_from((None, 5, 30))),
                keeps_work=draw(st.booleans()),
                patience_ms=draw(st.sampled_from((None, None, 0, 15))),
                retries=draw(st.integers(0, 2)),
            )
        )
    return jobs


@st.composite
def outages(draw: st.DrawFn, nodes: tuple[Node, ...]) -> list[Outage]:
    """Some times during which nodes are lost; those of one node may touch and overlap."""
    found = []
    for node in range(len(nodes)):
        for _ in range(draw(st.integers(0, 3))):
            down_ms = draw(st.integers(0, 60))
            found.append(Outage(node, down_ms, draw(st.sampled_from((None, down_ms + 1, down_ms + 25)))))
    return found


def half_each(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
    """n jobs on a GPU get an nth each."""
    return Outlook((1000 // len(tenants),) * len(tenants))
