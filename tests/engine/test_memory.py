"""Jobs that need more GPU memory than they were given: killed, relaunched, let grow, and suspended for each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster
from berth.engine import simulate
from berth.engine.memory import WhenFull
from berth.engine.suspension import Suspension
from berth.errors import SettingError
from berth.growth import ROOM_MS
from berth.interference import Outlook, Tenant, make_interference
from berth.interference.profiled import thesis_unhindered
from berth.model import (
    WHOLE_GPU,
    Event,
    EventKind,
    GpuModel,
    GpuSlot,
    Job,
    Node,
    Profile,
    Reason,
    Share,
    work_of,
)
from berth.statistics import event_columns, summarise
from berth.statistics.measures import growths
from tests.engine.examples import clusters, half_each, outages, workloads
from tests.examples import examples

CARD = GpuModel("X", mem_mib=100)
ONE_GPU = Cluster([Node("n", gpus=1, gpu_model=CARD)])
COPIES = Suspension(mbps=1 << 20, back_mbps=1 << 20, setup_ms=7)
POLICIES = (
    "fifo+first-fit",
    "easy+priority+worst-fit",
    "preempt+fifo+best-fit",
    "conservative+fifo+best-fit",
)


@dataclass(frozen=True)
class Steps:
    """A model that knows when each job uses how much memory."""

    of: Mapping[str, Sequence[tuple[int, int]]]
    hindered: bool = False

    def __call__(self, tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        return half_each(tenants, gpu) if self.hindered else Outlook((1000,) * len(tenants))

    def fits_alone(self, job: Job, gpu: GpuModel | None) -> bool:
        return gpu is None or max(mib for _, mib in self.of[job.id]) <= gpu.mem_mib

    def used_mib(self, tenant: Tenant, gpu: GpuModel | None) -> int:
        raise AssertionError("what is used is counted by the engine")

    def memory_over_time(self, job: Job, gpu: GpuModel | None) -> Sequence[tuple[int, int]]:
        return self.of[job.id]


def job(name: str, work_ms: int, said_mib: int = 20, **changed: object) -> Job:
    return replace(Job(name, 0, work_ms, application=name, share=Share(100, said_mib)), **changed)  # type: ignore[arg-type]


def run(jobs: Sequence[Job], steps: Mapping[str, Sequence[tuple[int, int]]], way: str) -> list[str]:
    """What happens after the starts at 0, in words."""
    events = simulate(
        jobs, ONE_GPU, "fifo+first-fit", interference=Steps(steps), when_full=way, suspension=COPIES
    )
    return [
        f"{event.time_ms} {event.kind} {event.job.id} {event.share.mem_mib}"
        for event in events
        if event.time_ms and event.kind is not EventKind.SUBMIT
    ]


TWO = {"a": ((0, 10), (1000, 60)), "b": ((0, 10), (1000, 60))}


@pytest.mark.parametrize(
    ("way", "then"),
    [
        (
            "kill",  # with an eighth more than they needed
            ["1000 fail b 20", "1000 fail a 20", "1000 start b 67", "6000 finish b 67", "6000 start a 67",
             "11000 finish a 67"],
        ),
        ("relaunch", ["1000 fail b 20", "5000 finish a 20", "5000 start b 0", "10000 finish b 0"]),
        (
            "grow",  # b takes what is free, so that no new job does, and waits for the rest
            ["1000 resize a 60", "1000 resize b 40", "5000 finish a 60", "5000 resize b 100", "9000 finish b 100"],
        ),
        (
            "suspend",  # a is older, and leaves since no younger one can
            ["1000 resize a 60", "1008 suspend a 60", "1008 resize b 100", "5008 finish b 100", "5008 resume a 60",
             "9016 finish a 60"],
        ),
    ],
)  # fmt: skip
def test_two_jobs_need_more_than_both_can_have(way: str, then: list[str]) -> None:
    assert run([job("a", 5000), job("b", 5000)], TWO, way) == then


def test_the_younger_leaves_its_card_for_the_older_and_comes_back() -> None:
    steps = {"a": ((0, 10), (1000, 80)), "b": ((0, 50),)}
    jobs = [job("a", 3000), job("b", 3000, 50)]
    assert run(jobs, steps, "suspend") == [
        "1008 suspend b 50", "1008 resize a 100", "3008 finish a 100", "3008 resume b 50", "5016 finish b 50"
    ]  # fmt: skip
    assert run(jobs, steps, "grow") == [
        "1000 resize a 50",
        "3000 finish b 50",
        "3000 resize a 100",
        "5000 finish a 100",
    ]


def test_jobs_that_came_first_are_answered_first_after_others_have_left() -> None:
    gone = [job(name, 500) for name in "xyz"]
    late = [replace(job("old", 3000), submit_ms=100), replace(job("new", 3000), submit_ms=600)]
    steps = dict.fromkeys("xyz", ((0, 10),)) | {"old": ((0, 10), (1000, 60)), "new": ((0, 10), (500, 60))}
    assert run([*gone, *late], steps, "grow")[-4:] == [
        "1100 resize new 40", "3100 finish old 60", "3100 resize new 100", "5600 finish new 100"
    ]  # fmt: skip


def test_an_older_job_stays_if_the_younger_ones_have_enough_together() -> None:
    of = {"old": ((0, 40),), "a": ((0, 20), (1000, 60)), "y1": ((0, 15),), "y2": ((0, 15),)}
    assert run([job(name, 5000, steps[0][1]) for name, steps in of.items()], of, "suspend")[:3] == [
        "1008 suspend y2 15", "1008 suspend y1 15", "1008 resize a 60"
    ]  # fmt: skip


@pytest.mark.parametrize("way", WhenFull)
def test_a_job_with_a_whole_gpu_may_not_take_more_than_it_has(way: WhenFull) -> None:
    small_and_large = Cluster([Node("s", 1, GpuModel("S", mem_mib=50)), Node("l", 1, CARD)])
    whole = job("a", 3000, share=WHOLE_GPU, retries=0)
    events = simulate(
        [whole], small_and_large, "fifo+first-fit", interference=Steps({"a": ((0, 10), (1000, 80))}),
        when_full=way,
    )  # fmt: skip
    last = list(events)[-1]
    assert (last.time_ms, last.kind, last.reason) == (1000, EventKind.FAIL, Reason.OUT_OF_MEMORY)


def test_only_resizes_with_more_memory_are_growths() -> None:
    before, part = job("a", 3000, gpus=2), Share(100, 20)
    slots = (GpuSlot(0, 0), GpuSlot(0, 1))
    events = [
        Event(0, EventKind.SUBMIT, before, 1, (), part, Reason.NONE),
        Event(0, EventKind.START, before, 1, slots, part, Reason.NONE),
        Event(1, EventKind.RESIZE, before, 1, slots[:1], part, Reason.NONE),
        Event(2, EventKind.RESIZE, before, 1, slots[:1], Share(100, 40), Reason.NONE),
        Event(3, EventKind.SUSPEND, before, 1, slots[:1], Share(100, 40), Reason.NONE),
        Event(4, EventKind.RESUME, before, 1, slots[:1], Share(100, 40), Reason.NONE),
        Event(5, EventKind.FINISH, before, 1, slots[:1], Share(100, 40), Reason.NONE),
    ]
    assert growths(event_columns(events)) == 1


def test_a_call_gives_up_after_ten_minutes_and_the_job_runs_again_with_more() -> None:
    jobs = [job("a", 2 * ROOM_MS, 60), job("b", 2000)]
    assert run(jobs, {"a": ((0, 60),), "b": ((0, 10), (1000, 50))}, "grow") == [
        "1000 resize b 40", f"{ROOM_MS + 1000} fail b 40", f"{2 * ROOM_MS} finish a 60", f"{2 * ROOM_MS} start b 56",
        f"{2 * ROOM_MS + 2000} finish b 56",
    ]  # fmt: skip


def test_the_summary_tells_what_became_of_jobs_that_needed_more() -> None:
    steps = {"a": ((0, 10), (1000, 80)), "b": ((0, 50),)}
    jobs = [job("a", 3000), job("b", 3000, 50)]
    events = simulate(
        jobs, ONE_GPU, "fifo+first-fit", interference=Steps(steps), when_full="suspend", suspension=COPIES
    )
    summary = summarise(event_columns(events), ONE_GPU.nodes, memory=True)
    assert (summary.growths, summary.suspensions, summary.suspended_s) == (1, 1, 2.0)
    assert (summary.lost_gpu_hours, summary.failures) == (0.0, {})
    assert summary.gpu_hours.wasted == pytest.approx(0.1 * 0.024 / 3600)  # a waits 8 ms, b moves twice
    events = simulate(jobs, ONE_GPU, "fifo+first-fit", interference=Steps(steps), when_full="kill")
    summary = summarise(event_columns(events), ONE_GPU.nodes, memory=True)
    assert summary.lost_gpu_hours == summary.gpu_hours.wasted == pytest.approx(0.1 * 1 / 3600)
    assert summary.failures == {Reason.OUT_OF_MEMORY: 1}


def test_a_profile_tells_when_its_application_needs_how_much() -> None:
    usage = np.array([[0.5, 0.1, 0.5, 0.0], [0.5, 0.1, 0.5, 0.0], [0.5, 0.6, 0.5, 0.0]])
    profile = Profile("a", "training", 0, "", CARD, 1000, usage)
    model = thesis_unhindered().with_profiles({"a": profile})
    assert model.memory_over_time(job("a", 1), CARD) == ((0, 10), (2000, 60))
    events = list(simulate([job("a", 5000)], ONE_GPU, "fifo+first-fit", interference=model, when_full="grow"))
    assert [(event.time_ms, event.share.mem_mib) for event in events if event.kind is EventKind.RESIZE] == [
        (2000, 100)  # by a step of 256 MiB, but no more than the card
    ]


def test_what_cannot_be_is_refused_and_said() -> None:
    def wrong(way: str = "grow", model: str = "none", nodes: Sequence[Node] = ONE_GPU.nodes) -> None:
        list(
            simulate(
                [job("a", 1)],
                Cluster(nodes),
                "fifo+first-fit",
                interference=make_interference(model),
                when_full=way,
            )
        )

    with pytest.raises(SettingError, match="when_full is 'shrink'; expected kill, relaunch, grow, suspend"):
        wrong("shrink")
    with pytest.raises(SettingError, match="GPUs: it is not known of n; name a GPU model"):
        wrong(nodes=[Node("n", gpus=1)])
    with pytest.raises(SettingError, match="GPUs: no node has one; name a GPU model"):
        wrong(nodes=[Node("n")])
    with pytest.raises(SettingError, match="MIG slices does not grow"):
        wrong(model="mig")
    with pytest.raises(SettingError, match="knows what jobs use of GPU memory"):
        list(simulate([job("a", 1)], ONE_GPU, "fifo+first-fit", interference=half_each, when_full="grow"))


@settings(max_examples=examples(120), deadline=None)
@given(data=st.data())
def test_limits_never_sum_up_to_more_than_a_card_and_no_job_is_lost(data: st.DataObject) -> None:
    """At every instant the limits on a card are at most the card; within an attempt a limit never shrinks, so that a
    promise is kept; what ends has ended within its limit; and each job ends."""
    nodes = data.draw(clusters())
    jobs, way = data.draw(workloads()), data.draw(st.sampled_from([*WhenFull]))
    if not any(node.gpus for node in nodes):
        return
    sizes = st.integers(1, 9000)
    later = st.dictionaries(st.integers(1, 40), sizes, max_size=3)
    steps = {each.id: [(0, data.draw(sizes)), *sorted(data.draw(later).items())] for each in jobs}
    jobs = [replace(each, application=f"app{at % 3}", priority=at % 2) for at, each in enumerate(jobs)]
    cluster = Cluster(nodes)
    events = list(
        simulate(
            jobs,
            cluster,
            data.draw(st.sampled_from(POLICIES)),
            knowledge=data.draw(st.sampled_from(("oracle", "history", "user"))),
            interference=Steps(steps, data.draw(st.booleans())),
            outages=data.draw(outages(nodes)),
            suspension=data.draw(st.sampled_from((None, COPIES))),
            when_full=way,
        )
    )
    check(events, jobs, nodes, steps, way)


def check(
    events: list[Event],
    jobs: list[Job],
    nodes: Sequence[Node],
    steps: Mapping[str, Sequence[tuple[int, int]]],
    way: WhenFull,
) -> None:
    event_columns(events)  # each attempt starts and ends once, and nothing happens between
    limits: dict[GpuSlot, dict[str, int]] = defaultdict(dict)
    of_attempt: dict[str, tuple[int, int]] = {}
    for event in events:
        name, mem_mib = event.job.id, event.share.mem_mib
        if event.kind in (EventKind.START, EventKind.RESIZE, EventKind.RESUME):
            before_mib = of_attempt.get(name, (0, 0))[1] if event.kind is not EventKind.START else 0
            assert mem_mib >= before_mib
            of_attempt[name] = event.attempt, mem_mib
            for slot in event.slots:
                if slot.index >= 0:
                    limits[slot][name] = mem_mib
        elif event.kind is not EventKind.SUBMIT:
            for there in limits.values():
                there.pop(name, None)
        for slot, there in limits.items():
            model = nodes[slot[0]].gpu_model
            assert model is not None
            assert sum(there.values()) <= model.mem_mib
        if event.kind is EventKind.FINISH and event.job.gpus and mem_mib and way is not WhenFull.RELAUNCH:
            used = [mib for at_ms, mib in steps[name] if at_ms < work_of(event.job)]
            assert mem_mib >= max(used, default=0)
    last = {event.job.id: event for event in events if event.kind is not EventKind.EVICT}
    assert last.keys() == {each.id for each in jobs}
    for event in last.values():
        assert event.kind in (EventKind.FINISH, EventKind.REJECT, EventKind.FAIL)
        if event.reason in (Reason.OUT_OF_MEMORY, Reason.NODE_LOST):
            assert event.attempt > event.job.retries
