"""What is really used: by hand, and by going the very way that the engine went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster
from berth.cluster.outages import Recovery
from berth.engine import simulate
from berth.experiments.compare import compare
from berth.interference import Outlook, Tenant, make_speeds
from berth.interference.profiled import ProfiledInterference
from berth.model import GpuModel, GpuSlot, Job, Node, Outage, Profile, Share
from berth.statistics import (
    METRICS,
    REAL_USE,
    attempts_of,
    event_columns,
    headlines_of,
    metrics_of,
    real_use,
    run_of,
    standings,
    summarise,
)
from berth.statistics.real_use import Attempt
from tests.examples import examples
from tests.statistics.histories import golden

CARD = GpuModel("card", "", 10_000)
NODES = (Node("a", 2, CARD), Node("b", 1, CARD))


def profile(name: str, *rows: tuple[float, float], interval_ms: int = 10) -> Profile:
    """GPU and memory, as fractions, one row an interval."""
    usage = np.array([[gpu, mem, gpu, 0.0] for gpu, mem in rows])
    return Profile(name, "", 0, "", CARD, interval_ms, usage)


PROFILES = {
    "light": profile("light", (0.2, 0.1), (0.6, 0.3)),
    "heavy": profile("heavy", (0.9, 0.4), (0.3, 0.2), (0.8, 0.4)),
}
UNSLOWED = ProfiledInterference(PROFILES, make_speeds("none"))
SLOWED = ProfiledInterference(PROFILES, make_speeds("time-sliced"))


def at(job: Job, start_ms: int, end_ms: int, *slots: tuple[int, int], share: Share | None = None) -> Attempt:
    places = tuple(GpuSlot(*slot) for slot in slots)
    return Attempt(job, job.share if share is None else share, places, start_ms, end_ms)


def test_each_row_of_a_profile_counts_as_long_as_it_lasts_and_nothing_is_cut() -> None:
    light, heavy = Job("1", 0, 20, application="light"), Job("2", 0, 30, application="heavy")
    alone = real_use([at(light, 0, 20, (0, 0))], NODES, UNSLOWED, PROFILES)
    assert (alone.gpu_ms, alone.mem_mib_ms) == (pytest.approx(2 + 6), 10 * 1000 + 10 * 3000)
    both = real_use([at(light, 0, 20, (0, 0)), at(heavy, 0, 30, (0, 0))], NODES, UNSLOWED, PROFILES)
    assert both.gpu_ms == pytest.approx(2 + 6 + 9 + 3 + 8)
    assert both.peak_mem_mib == 5000
    assert both.gpu_pct(NODES, 100) == pytest.approx(100 * 28 / 300)
    assert both.mem_pct(NODES, 100) == pytest.approx(100 * (40_000 + 100_000) / (3 * 10_000 * 100))
    assert both.gpu_pct((), 100) is None
    twice = [at(replace(heavy, id=str(number)), 0, 10, (0, 0)) for number in range(2)]
    assert real_use(twice, NODES, UNSLOWED, PROFILES).gpu_ms == pytest.approx(
        18
    )  # more than one GPU for 10 ms


@pytest.mark.parametrize("mode", ["time-sliced", "mps", "mig", "none"])
def test_no_gpu_is_ever_used_more_than_its_mode_allows(mode: str) -> None:
    usage = np.array([[0.4, 0.02, 0.3, 0.1], [0.9, 0.03, 0.7, 0.2]])
    busy = {"busy": Profile("busy", "", 0, "", CARD, 10, usage)}
    model = ProfiledInterference(busy, make_speeds(mode))
    jobs = [Job(f"j{at}", at, 20, application="busy", share=Share(150, 0)) for at in range(24)]
    columns = event_columns(simulate(jobs, Cluster(NODES), "first-fit", interference=model))
    found = real_use(attempts_of(columns, jobs), NODES, model, busy)
    most = {"time-sliced": 100, "mps": 100, "mig": 100, "none": 6 * 90}[mode]
    assert 0.6 * most < found.peak_use_pct <= most


def test_who_is_slowed_uses_less_for_longer() -> None:
    def half(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        return Outlook((1000 // len(tenants),) * len(tenants), 10)

    light = Job("1", 0, 20, application="light")
    found = real_use(
        [at(light, 0, 40, (0, 0)), at(replace(light, id="2"), 0, 40, (0, 0))], NODES, half, PROFILES
    )
    # Two who take turns use together what one alone uses, and their memory all the time.
    assert found.gpu_ms == pytest.approx(20 * 0.2 + 20 * 0.6)
    assert found.mem_mib_ms == 2 * (20 * 1000 + 20 * 3000)


def test_a_job_without_a_profile_uses_its_share_and_one_on_two_gpus_is_as_slow_as_on_the_slower() -> None:
    unknown = Job("1", 0, 100, share=Share(300, 700))
    found = real_use([at(unknown, 0, 100, (0, 0))], NODES, UNSLOWED, PROFILES)
    assert (found.gpu_ms, found.mem_mib_ms) == (pytest.approx(30), 70_000)

    def crowded(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        return Outlook((1000 if len(tenants) == 1 else 500,) * len(tenants))

    two, one = Job("2", 0, 100, gpus=2), Job("3", 0, 100)
    found = real_use([at(two, 0, 100, (0, 0), (0, 1)), at(one, 0, 50, (0, 1))], NODES, crowded, PROFILES)
    assert found.gpu_ms == pytest.approx(2 * (50 * 0.5 + 50) + 50 * 0.5)


def test_kept_work_goes_on_where_it_was_and_lost_work_begins_anew() -> None:
    job = Job("1", 0, 20, application="light", keeps_work=True)
    stays = [at(job, 0, 10, (0, 0)), at(job, 50, 60, (1, 0))]
    assert real_use(stays, NODES, UNSLOWED, PROFILES).gpu_ms == pytest.approx(2 + 6)
    lost = [each._replace(job=replace(job, keeps_work=False)) for each in stays]
    assert real_use(lost, NODES, UNSLOWED, PROFILES).gpu_ms == pytest.approx(2 + 2)
    restarted = [stays[0], stays[1]._replace(end_ms=65)]
    found = real_use(restarted, NODES, UNSLOWED, PROFILES, Recovery(restart_ms=5))
    assert found.gpu_ms == pytest.approx(
        2 + 5 * 0.2 + 10 * 0.6
    )  # to load what it needs is as its last row was


class Recording(ProfiledInterference):
    """Notes what it is asked, of moments that last: tenants that do not fit together are parted at once."""

    def __init__(self, of: ProfiledInterference) -> None:
        super().__init__(of.profiles, of.speeds)
        self.asked: Counter[object] = Counter()
        self.parted: list[set[object]] = []
        """Tenants that did not fit together."""

    def __call__(self, tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        outlook = super().__call__(tenants, gpu)
        asked = tuple((each.job.id, each.share, each.done_ms, each.rest_us) for each in tenants)
        if outlook.out_of_memory is None:
            self.asked[asked] += 1
        else:
            self.parted.append(set(asked))
        return outlook


JOBS = st.lists(
    st.builds(
        lambda gap, work, application, gpus, milli, keeps: (gap, work, application, gpus, milli, keeps),
        st.integers(0, 15),
        st.integers(1, 70),  # one without work is asked about, and uses nothing
        st.sampled_from(("light", "heavy", "unknown")),
        st.integers(0, 3),
        st.sampled_from((250, 500, 1000)),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(150), deadline=None)
@given(
    drawn=JOBS,
    down=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(1, 20)), max_size=3),
    recovery=st.sampled_from(
        (Recovery(), Recovery(7), Recovery(7, 3), Recovery(None, 4), Recovery(7, 3, write_ms=2))
    ),
)
def test_the_run_is_gone_through_as_the_engine_went(
    drawn: list[tuple[int, int, str, int, int, bool]],
    down: list[tuple[int, int, int]],
    recovery: Recovery,
) -> None:
    jobs, now_ms = [], 0
    for number, (gap, work_ms, application, gpus, milli, keeps) in enumerate(drawn):
        now_ms += gap
        share = Share(milli) if gpus == 1 else Share()
        job = Job(str(number), now_ms, work_ms, "", application, gpus, share, nodes=0, keeps_work=keeps)
        jobs.append(job)
    outages = [Outage(node, begin, begin + lasts) for node, begin, lasts in down if node < len(NODES)]
    ran, again = Recording(SLOWED), Recording(SLOWED)
    events = simulate(jobs, Cluster(NODES), "first-fit", interference=ran, outages=outages, recovery=recovery)
    columns = event_columns(events)
    found = real_use(attempts_of(columns, jobs), NODES, again, PROFILES, recovery)
    assert not again.asked - ran.asked, again.asked - ran.asked
    for asked in (
        ran.asked - again.asked
    ):  # of those that stay when one is parted from them, at the same moment
        assert any(set(asked) <= group for group in ran.parted), asked  # type: ignore[call-overload]
    assert found.gpu_ms >= 0


def test_comparing_counts_real_use_where_profiles_are_known() -> None:
    jobs = [Job(str(number), 0, 30, application="heavy", share=Share(500)) for number in range(8)]
    known = compare(jobs, ["fifo+first-fit", "fifo+worst-fit"], cluster=NODES, interference=SLOWED)
    for run in known.runs:
        assert run.summary.gpu_use_pct is not None
        # A job does the same work however slowly, so that its use is what it is alone: 20 ms of a GPU.
        assert run.summary.gpu_use_pct == pytest.approx(
            100 * 8 * 20 / (3000 * run.summary.makespan_s), rel=0.05
        )
    summaries = [run.summary for run in known.runs]
    assert [metric.name for metric in metrics_of(summaries)] == [
        metric.name for metric in (*REAL_USE, *METRICS)
    ]
    lines = known.table().splitlines()
    (head,) = [at for at, line in enumerate(lines) if line.split()[:2] == ["metric", "unit"]]
    assert lines[head + 2].split()[:2] == ["GPU", "use"]
    held = {"GPU allocation", "Allocation while jobs arrive", "GPU utilisation"}
    assert all(metric.best is None for metric in metrics_of(summaries) if metric.name in held)
    assert not held & {metric.name for metric in headlines_of(summaries)}
    unknown = compare(jobs, "fifo", cluster=NODES)
    assert unknown.runs[0].summary.gpu_use_pct is None
    assert metrics_of(run.summary for run in unknown.runs) == METRICS


def test_the_policy_that_shares_is_the_best_by_use_though_it_holds_less() -> None:
    """One GPU, two light jobs, in turn or together: the second does in 20 ms what the first does in 40."""
    jobs = [Job(str(number), 0, 20, application="light") for number in range(2)]
    runs = []
    for name, begins in (("in turn", (0, 20)), ("together", (0, 0))):
        history = golden().events[:1]
        events = [history[0]._replace(time_ms=0, job=job) for job in jobs]
        for job, begin in zip(jobs, begins, strict=True):
            slots = (GpuSlot(0, 0),)
            start = history[0]._replace(
                time_ms=begin, kind=type(history[0].kind)("start"), job=job, slots=slots
            )
            start = start._replace(share=Share(1000), shared=name == "together")
            events += [start, start._replace(time_ms=begin + 20, kind=type(start.kind)("finish"))]
        events.sort(key=lambda event: event.time_ms)
        columns = event_columns(events)
        node = (Node("a", 1, CARD),)
        use = real_use(attempts_of(columns, jobs), node, UNSLOWED, PROFILES)
        runs.append(run_of(columns, node, name, 0, use=use))
    in_turn, together = (run.summary for run in runs)
    assert (in_turn.gpu_allocation_pct, together.gpu_allocation_pct) == (100, 100)  # it counts once
    assert (in_turn.gpu_use_pct, together.gpu_use_pct) == (pytest.approx(40), pytest.approx(80))
    marks = {each.policy: each.mark.value for each in standings(runs, REAL_USE[0])}
    assert marks == {"in turn": "", "together": "best"}
    for metric in metrics_of((in_turn, together)):
        if metric.name in {"GPU allocation", "GPU utilisation"}:
            assert {each.mark.value for each in standings(runs, metric)} == {""}
    assert summarise(event_columns(golden().events), golden().nodes).gpu_use_pct is None
