"""A trace as Python and notebooks have it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import berth
from berth.errors import SettingError
from berth.model import Placement, placement_of
from berth.policies import Setting


def test_a_trace_is_iterated_counted_and_shown() -> None:
    trace = berth.read_trace("synthetic:demo?jobs=30")
    assert [job.id for job in trace] == [job.id for job in trace.jobs()]
    assert len(trace) == len(trace.rows()) == 30
    assert repr(trace) == "Trace('synthetic:demo?jobs=30', synthetic, 7 nodes with 40 GPUs)"
    first = next(iter(trace))
    row = trace.rows()[0]
    assert (row["id"], row["gpus"], row["gpu_milli"]) == (first.id, first.gpus, first.share.milli)


def test_a_trace_is_simulated_as_it_is() -> None:
    trace = berth.read_trace("synthetic:demo?jobs=30")
    assert trace.nodes is not None
    events = list(berth.simulate(trace, berth.Cluster(trace.nodes), "fifo"))
    assert len(events) == 90


class FirstThatFits:
    """A policy that starts whatever fits."""

    def __init__(self, setting: Setting) -> None:
        """No setting counts."""

    def __call__(self, queue: berth.Queue, cluster: berth.Cluster, now_ms: int) -> Iterator[Placement]:
        for job in list(queue):
            slots = cluster.slots_for(job, cluster.fitting_nodes(job))
            if slots is not None:
                yield placement_of(job, slots)


def test_a_class_of_a_module_is_compared_and_one_without_a_name_is_refused() -> None:
    trace = berth.read_trace("synthetic:demo?jobs=30")
    result = berth.compare(trace, ["fifo", FirstThatFits])
    assert result.policies == ("fifo", f"{__name__}:FirstThatFits")
    with pytest.raises(SettingError, match="functions or classes at the top of a module"):
        berth.compare(trace, [lambda queue: queue])
