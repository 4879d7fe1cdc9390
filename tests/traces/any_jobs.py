"""Any job, any node: what hypothesis draws for the round trips."""

from __future__ import annotations

from hypothesis import strategies as st

from berth.model import FOREVER_MS, Job, Node, Share

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
NAMES = TEXTS.filter(bool)
SPLIT_NAMES = NAMES.filter(lambda name: "|" not in name)
TIMES_MS = st.one_of(st.integers(0, 10**12), st.just(FOREVER_MS))
OPTIONAL_MS = st.none() | st.integers(0, 10**12)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A job that a trace may hold: its GPUs divide evenly over its nodes."""
    nodes = draw(st.integers(0, 4))
    gpus_per_node = draw(st.integers(0, 16))
    return Job(
        id=draw(NAMES),
        submit_ms=draw(TIMES_MS),
        work_ms=draw(TIMES_MS),
        user=draw(TEXTS),
        application=draw(TEXTS),
        gpus=gpus_per_node * max(nodes, 1),
        share=Share(draw(st.integers(1, 1000)), draw(st.integers(0, 10**6))),
        nodes=nodes,
        cpu_milli=draw(st.integers(0, 10**7)),
        mem_mib=draw(st.integers(0, 10**8)),
        models=tuple(draw(st.lists(SPLIT_NAMES, max_size=2))),
        labels=tuple(draw(st.lists(SPLIT_NAMES, max_size=2))),
        priority=draw(st.integers(-(10**6), 10**6)),
        time_limit_ms=draw(OPTIONAL_MS),
        estimate_ms=draw(OPTIONAL_MS),
        retries=draw(st.integers(0, 100)),
        keeps_work=draw(st.booleans()),
        patience_ms=draw(OPTIONAL_MS),
        virtual_cluster=draw(TEXTS),
        deadline_ms=draw(OPTIONAL_MS),
        after=tuple(f"before {name}" for name in draw(st.lists(SPLIT_NAMES, max_size=2))),
    )


JOB_LISTS = st.lists(jobs(), max_size=3, unique_by=lambda job: job.id)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """A node as a node list can tell it."""
    from berth.gpu_models import gpu_model

    gpus = draw(st.integers(0, 16))
    return Node(
        name=draw(NAMES),
        gpus=gpus,
        gpu_model=gpu_model(draw(st.sampled_from(["V100", "T4", "G2", "home-made"]))) if gpus else None,
        cpu_milli=draw(st.none() | st.integers(0, 10**6)),
        mem_mib=draw(st.none() | st.integers(0, 10**7)),
        labels=tuple(draw(st.lists(SPLIT_NAMES, max_size=2))),
    )
