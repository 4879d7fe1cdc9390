"""The schedule as a picture: each bar is a job on a GPU, and bars of one GPU do not cover each other."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from berth.cluster import Cluster
from berth.engine import simulate
from berth.experiments.compare import compare
from berth.experiments.compare.page import comparison_chapters
from berth.experiments.compare.plots import schedule as picture
from berth.interference import make_interference
from berth.model import EventKind, Job, Node, Share
from berth.profiles import THESIS_GPU, workload_jobs
from berth.statistics import event_columns
from berth.statistics.run import SCHEDULED_ATTEMPTS, schedule

NODES = [Node("a", 2, None, 64_000, 64_000), Node("b", 1, None, 64_000, 64_000)]


def workload() -> list[Job]:
    shares = (Share(300, 0), Share(500, 0), Share(1000, 0), Share(200, 0))
    return [
        Job(
            f"j{at}", 500 * at, 1000 * (1 + at % 5), gpus=1 + (at % 7 == 0), user=f"u{at % 9}",
            share=shares[at % 4] if at % 7 else Share(1000, 0),
        )
        for at in range(60)
    ]  # fmt: skip


def test_every_gpu_of_every_attempt_has_its_bar_and_no_two_lie_on_each_other() -> None:
    events = list(simulate(workload(), Cluster(NODES), "fifo+best-fit"))
    bars = schedule(event_columns(events), NODES)
    assert bars is not None
    first = {"a": 0, "b": 2}
    ends = {e.job.id: e.time_ms for e in events if e.kind is EventKind.FINISH}
    wanted = sorted(
        (e.job.id, e.job.user, first[NODES[s.node].name] + s.index, e.time_ms, ends[e.job.id], e.share.milli)
        for e in events
        if e.kind is EventKind.START
        for s in e.slots
    )
    columns = (bars.jobs, bars.users, bars.cell, bars.begin_ms, bars.end_ms, bars.milli)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == wanted
    assert (bars.from_milli + bars.milli).max() == 1000
    for one, other in combinations(range(len(bars.cell)), 2):
        apart = (
            bars.cell[one] != bars.cell[other]
            or bars.end_ms[one] <= bars.begin_ms[other]
            or bars.end_ms[other] <= bars.begin_ms[one]
            or bars.from_milli[one] + bars.milli[one] <= bars.from_milli[other]
            or bars.from_milli[other] + bars.milli[other] <= bars.from_milli[one]
        )
        assert apart, (bars.jobs[one], bars.jobs[other])


def test_the_picture_has_a_colour_for_each_of_the_busiest_users_and_a_row_for_each_gpu() -> None:
    bars = schedule(event_columns(simulate(workload(), Cluster(NODES), "fifo+best-fit")), NODES)
    assert bars is not None
    figure = picture(bars, ["a GPU 0", "a GPU 1", "b"])
    assert len(figure.data) == 7
    assert figure.data[-1].name == "others"
    assert sum(len(trace.x) for trace in figure.data) == len(bars.cell)
    assert list(figure.layout.yaxis.ticktext) == ["a GPU 0", "a GPU 1", "b"]
    places = [(y - w / 2, y + w / 2) for t in figure.data for y, w in zip(t.y, t.width, strict=True)]
    assert all(-0.5 < low < high < 2.5 for low, high in places)


def test_jobs_that_may_each_use_all_of_a_gpu_stay_within_its_row() -> None:
    nodes = [Node("a", 2, THESIS_GPU)]
    mps = make_interference("mps")
    events = simulate(workload_jobs("random", 12, 1), Cluster(nodes), "greedy", interference=mps)
    bars = schedule(event_columns(events), nodes)
    assert bars is not None
    assert (bars.from_milli + bars.milli).max() > 1000
    for trace in picture(bars, ["a GPU 0", "a GPU 1"]).data:
        for y, width, (_, name, _, part) in zip(trace.y, trace.width, trace.customdata, strict=True):
            row = int(name[-1])
            assert row - 0.5 < y - width / 2 < y + width / 2 < row + 0.5
            assert part == "100 %"


def test_large_runs_have_no_schedule_and_a_page_of_several_policies_shows_none(tmp_path: Path) -> None:
    jobs = [Job(f"j{at}", at, 1, gpus=1) for at in range(SCHEDULED_ATTEMPTS + 1)]
    assert schedule(event_columns(simulate(jobs, Cluster(NODES), "fifo+first-fit")), NODES) is None
    several = compare(workload(), ["fifo+first-fit", "sjf+best-fit"], cluster=NODES, keep=tmp_path)
    assert "The schedule" not in [each.title for each in comparison_chapters(several.runs, NODES)]
    alone = compare(workload(), ["fifo+first-fit"], cluster=NODES, keep=tmp_path)
    (found,) = [each for each in comparison_chapters(alone.runs, NODES) if each.title == "The schedule"]
    assert sum(len(trace.x) for trace in found.figures[0][1].data) > 60
