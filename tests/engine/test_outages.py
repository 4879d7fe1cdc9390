"""Outages from a file and at a rate, checkpoints, restarts, and what they do to goodput."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.cluster import Cluster
from berth.cluster.outages import FailureRate, Recovery, read_outages
from berth.engine import simulate
from berth.errors import SettingError, TraceError
from berth.experiments.compare import compare
from berth.model import EventKind, Job, Node, Outage
from berth.statistics import event_columns, summarise

NODES = (Node("a", 1), Node("b", 1))


def test_a_file_names_nodes_and_times_and_is_put_in_order(tmp_path: Path) -> None:
    path = tmp_path / "outages.csv"
    path.write_text("why,node,down_s,up_s\nx,b,5.5,\n,a,1,2\n")
    assert read_outages(path, NODES) == (Outage(0, 1000, 2000), Outage(1, 5500, None))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node,down_s,up_s\nc,1,2\n", "line 2, column 'node': 'c'; expected a node of the cluster: a, b"),
        ("node,down_s,up_s\n,1,2\n", "line 2, column 'node': ''; expected a node of the cluster: a, b"),
        ("node,down_s,up_s\na,-1,2\n", "line 2, column 'down_s': '-1'; expected seconds, 0 or more"),
        ("node,down_s,up_s\na,nan,2\n", "line 2, column 'down_s': 'nan'; expected seconds"),
        ("node,down_s,up_s\na,3,2\n", "line 2, column 'up_s': '2'; expected a time after down_s, 3"),
        ("node,down_s,up_s\na,3\n", "line 2: 'a,3'; expected 3 columns"),
        (
            "node,up_s\na,3\n",
            "line 1, column 'down_s': 'node, up_s'; expected the columns node, down_s and up_s",
        ),
    ],
)
def test_a_bad_outage_file_is_told_by_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "outages.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_outages(path, NODES)
    assert said in str(caught.value)


def test_a_node_is_drained_before_maintenance_and_what_still_runs_is_evicted(tmp_path: Path) -> None:
    path = tmp_path / "windows.csv"
    path.write_text("node,down_s,up_s,drain_s\na,10,20,6\nb,3,4,\n")
    windows = read_outages(path, NODES)
    assert windows == (Outage(1, 3000, 4000), Outage(0, 10_000, 20_000, 6000))
    jobs = [
        Job("long", 0, 15_000, keeps_work=True),  # on a: evicted at 10 s, goes on at once on b
        Job("lost", 0, 1000 * 5),  # on b: lost at 3 s, starts anew at 4 s
        Job("later", 4500, 1000),  # not on a, which is drained
    ]
    events = list(simulate(jobs, Cluster([*NODES]), "fifo", outages=windows))
    assert [
        (event.job.id, event.kind.value, event.time_ms, [slot.node for slot in event.slots])
        for event in events
        if event.kind is not EventKind.SUBMIT
    ] == [
        ("long", "start", 0, [0]), ("lost", "start", 0, [1]), ("lost", "fail", 3000, [1]), ("lost", "start", 4000, [1]),
        ("lost", "finish", 9000, [1]), ("later", "start", 9000, [1]), ("later", "finish", 10_000, [1]),
        ("long", "evict", 10_000, [0]), ("long", "start", 10_000, [1]), ("long", "finish", 15_000, [1]),
    ]  # fmt: skip
    for text, said in (
        ("a,3,4,5", "line 2, column 'drain_s': '5'; expected at most down_s, 3"),
        ("z,3,4,1", "line 2, column 'node': 'z'; expected a node of the cluster: a, b"),
    ):
        path.write_text(f"node,down_s,up_s,drain_s\n{text}\n")
        with pytest.raises(TraceError) as caught:
            read_outages(path, NODES)
        assert said in str(caught.value)


def test_settings_outside_their_range_are_refused(tmp_path: Path) -> None:
    for make in (
        lambda: FailureRate(0, 1),
        lambda: Recovery(checkpoint_ms=0),
        lambda: Recovery(restart_ms=-1),
    ):
        with pytest.raises(SettingError):
            make()
    with pytest.raises(SettingError, match="from a file or at a rate"):
        compare("synthetic:demo", "fifo", outages=[Outage(0, 1)], failures=FailureRate(1, 1))


def test_rates_are_met_nodes_fail_apart_and_time_never_runs_back() -> None:
    rate = FailureRate(mtbf_ms=100_000, mttr_ms=10_000)
    found = list(islice(rate.outages(50, seed=3), 20_000))
    assert found == list(islice(rate.outages(50, seed=3), 20_000))
    assert all(one.down_ms <= other.down_ms for one, other in pairwise(found))
    repair = [outage.up_ms - outage.down_ms for outage in found if outage.up_ms is not None]
    assert sum(repair) / len(repair) == pytest.approx(10_000, rel=0.03)
    assert found[-1].down_ms * 50 / len(found) == pytest.approx(110_000, rel=0.03)
    last_up = [-1] * 50
    for outage in found:
        assert outage.down_ms > last_up[outage.node]
        last_up[outage.node] = outage.up_ms or 0


def test_outages_that_are_drawn_are_written_to_the_events(tmp_path: Path) -> None:
    hour_ms = 3_600_000
    jobs = [Job(f"j{n}", n * hour_ms // 4, hour_ms) for n in range(300)]
    rate = FailureRate(5 * hour_ms, hour_ms)
    path = tmp_path / "e.parquet"
    compare(jobs, "fifo", cluster=NODES, failures=rate, seeds=[3], events=path)
    rows = duckdb.sql(f"SELECT time_ms, kind, job_id, node FROM '{path}'").fetchall()
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    told = {row for row in rows if row[1] in ("node-lost", "node-back")}
    end_ms = rows[-1][0]
    want: set[tuple[int, str, None, str]] = set()
    for outage in islice(rate.outages(2, seed=3), 1000):
        name = NODES[outage.node].name
        want |= {(outage.down_ms, "node-lost", None, name), (outage.up_ms or 0, "node-back", None, name)}
    assert len(told) > 20
    assert told == {row for row in want if row[0] <= end_ms}
    # Every attempt that failed did so when its node was lost, and nothing started on one that was down.
    lost = {(time_ms, node) for time_ms, kind, _, node in told if kind == "node-lost"}
    assert {(row[0], row[3]) for row in rows if row[1] == "fail"} <= lost


def test_a_job_that_is_lost_again_and_again_is_given_up_and_named(
    tmp_path: Path,
) -> None:
    hour_ms = 3_600_000
    job = Job("ten-days", 0, 240 * hour_ms)
    failures = FailureRate(5 * hour_ms, hour_ms)
    events = list(simulate([job], Cluster(NODES[:1]), "fifo", outages=failures.outages(1)))
    lost = [event.reason.value for event in events if event.kind is EventKind.FAIL]
    assert lost == ["node-lost"] * 99 + ["lost-too-often"]
    assert (events[-1].kind, events[-1].attempt) == (EventKind.FAIL, 100)
    columns = event_columns(events)
    assert summarise(columns, NODES[:1]).given_up == ("ten-days",)
    # One that keeps something each time goes on for as long as it takes.
    keeps = [replace(job, keeps_work=True)]
    events = list(
        simulate(
            keeps, Cluster(NODES[:1]), "fifo", outages=failures.outages(1), recovery=Recovery(most_lost=3)
        )
    )
    assert events[-1].kind is EventKind.FINISH
    with pytest.raises(SettingError, match="after 0 attempts lost with their nodes; expected 1 or more"):
        Recovery(most_lost=0)
    (tmp_path / "t.csv").write_text("id,submit_ms,work_ms,gpus\nlong,0,864000000,1\n")
    words = ["simulate", str(tmp_path / "t.csv"), "--cluster", "1x1:V100", "--mtbf", "5", "--policy", "fifo"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "1 jobs are given up, as 100 attempts of each were lost" in done.stderr
    assert "'long'" in done.stderr


def told(job: Job, recovery: Recovery) -> list[tuple[str, int, int]]:
    events = simulate(
        [job], Cluster([Node("a", 1)]), "fifo", outages=[Outage(0, 7000, 8000)], recovery=recovery
    )
    return [(event.kind.value, event.time_ms, event.attempt) for event in events]


def test_work_is_kept_up_to_the_last_checkpoint_and_a_restart_takes_its_time() -> None:
    begin = [("submit", 0, 1), ("start", 0, 1), ("fail", 7000, 1), ("submit", 7000, 2), ("start", 8000, 2)]
    keeps = Job("x", 0, 10_000, keeps_work=True)
    assert told(keeps, Recovery()) == [*begin, ("finish", 11_000, 2)]
    assert told(keeps, Recovery(checkpoint_ms=3000)) == [*begin, ("finish", 12_000, 2)]
    assert told(keeps, Recovery(3000, 500)) == [*begin, ("finish", 12_500, 2)]
    assert told(Job("x", 0, 10_000), Recovery(3000, 500)) == [*begin, ("finish", 18_500, 2)]


def test_a_try_that_was_stopped_while_it_loaded_has_done_nothing_and_lost_nothing() -> None:
    outages = [Outage(0, 6000, 7000), Outage(0, 7400, 8000), Outage(0, 10_500, 11_000)]
    job = Job("x", 0, 10_000, keeps_work=True)
    recovery = Recovery(checkpoint_ms=2000, restart_ms=1000)
    events = list(simulate([job], Cluster([Node("a", 1)]), "fifo", outages=outages, recovery=recovery))
    # 6 s kept; nothing from 7.0 to 7.4; from 8.0 loads until 9.0 and does 1.5 s, none of it kept; from 11.0: 1 + 4 s.
    assert (events[-1].kind, events[-1].time_ms, events[-1].attempt) == (EventKind.FINISH, 16_000, 4)
    summary = summarise(event_columns(events), [Node("a", 1)])
    assert summary.goodput_pct == pytest.approx(100 * 10_000 / (6000 + 400 + 2500 + 5000))


def test_outages_without_end_stop_with_the_jobs_even_if_nobody_serves_them() -> None:
    rate = FailureRate(5000, 500)
    jobs = [Job(f"j{n}", n * 1000, 3000, keeps_work=True) for n in range(50)]
    events = list(simulate(jobs, Cluster(NODES), "fifo", outages=rate.outages(2)))
    assert sum(event.kind is EventKind.FINISH for event in events) == 50
    idle = list(
        simulate(jobs[:1], Cluster(NODES), lambda queue, cluster, now_ms: iter(()), outages=rate.outages(2))
    )
    assert [event.kind.value for event in idle] == ["submit", "reject"]


def test_goodput_falls_with_failures_and_rises_with_checkpoints() -> None:
    def goodput(**more: object) -> float:
        result = compare("synthetic:demo?jobs=150&seed=1", "fifo+best-fit", **more)  # type: ignore[arg-type]
        return result.runs[0].summary.goodput_pct

    failures = FailureRate(mtbf_ms=6 * 3_600_000, mttr_ms=600_000)
    every_ten_minutes = Recovery(checkpoint_ms=600_000, restart_ms=60_000)
    without, lost, kept = (
        goodput(),
        goodput(failures=failures),
        goodput(failures=failures, recovery=every_ten_minutes),
    )
    assert without == pytest.approx(100)
    assert lost < kept < 100
