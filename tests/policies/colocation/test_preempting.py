"""`preempt` before policies that share: a higher priority takes the place of lower ones, and of no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import PolicyError
from berth.interference import make_interference
from berth.model import EventKind, Node
from berth.policies import make_policy
from berth.profiles import THESIS_GPU, workload_jobs

ONE = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])


def run(policy: str, priority: int):
    """Four jobs at the beginning, and one that needs most of the memory after 20 s: when each starts and is evicted."""
    early = workload_jobs("GPUmemory_heavy", 4, 1)
    late = replace(early[0], id="late", submit_ms=20_000, priority=priority, application="vgg16")
    events = list(simulate([*early, late], ONE, policy, interference=make_interference("mps")))
    starts = [event.time_ms for event in events if event.kind == EventKind.START and event.job.id == "late"]
    evicted = [event for event in events if event.kind == EventKind.EVICT]
    assert sum(event.kind == EventKind.FINISH for event in events) == 5
    return starts, evicted


@pytest.mark.parametrize("policy", ["preempt+greedy", "preempt+fifo+learned", "preempt+pair-packer"])
def test_a_higher_priority_starts_at_once_where_jobs_of_lower_ones_run(policy: str) -> None:
    starts, evicted = run(policy, 5)
    assert starts == [20_000]
    assert {event.time_ms for event in evicted} <= {20_000}
    assert not any(event.job.id == "late" for event in evicted)


def test_a_job_of_the_same_priority_evicts_nobody() -> None:
    starts, evicted = run("preempt+greedy", 0)
    assert not evicted
    assert len(starts) == 1


def test_what_goes_with_no_scheme_is_refused() -> None:
    for name in ("easy+greedy", "preempt+genetic"):
        with pytest.raises(PolicyError, match="decides by itself what is stopped"):
            make_policy(name)
