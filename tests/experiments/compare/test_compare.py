"""The comparison: what runs, what is kept, and that workers and files change nothing."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

import berth
from berth import Conditions
from berth.errors import SettingError, SimulationError
from berth.interference import make_interference
from berth.model import Job, Node, Share
from berth.statistics import summary_dict

JOBS = [Job(f"j{number}", number * 500, 3000, share=Share(400 + number % 3 * 200)) for number in range(60)]
NODES = (Node("a", gpus=2), Node("b", gpus=1))


def numbers(comparison: berth.Comparison) -> list[dict[str, object]]:
    return [{"policy": run.policy, "seed": run.seed, **summary_dict(run.summary)} for run in comparison.runs]


def test_runs_come_in_the_order_that_was_asked_for_and_those_that_draw_nothing_once() -> None:
    result = berth.compare(JOBS, ["random", "fgd"], cluster=NODES, seeds=[7, 3])
    assert [(run.policy, run.seed) for run in result.runs] == [("random", 7), ("random", 3), ("fgd", 7)]


@pytest.mark.slow
def test_a_sweep_over_processes_gives_the_same() -> None:
    alone = berth.compare("synthetic:demo?jobs=60", ["random", "sjf"], seeds=2)
    together = berth.compare("synthetic:demo?jobs=60", ["random", "sjf"], seeds=2, processes=2)
    assert numbers(alone) == numbers(together)
    assert numbers(alone)[0] != numbers(alone)[1]  # another seed, another workload


def test_a_synthetic_trace_with_a_seed_of_its_own_stays_as_it_is() -> None:
    result = berth.compare("synthetic:demo?jobs=60&seed=5", "sjf", seeds=2)
    assert [run.seed for run in result.runs] == [0]


def test_compressed_arrivals_are_those_of_the_same_jobs_sooner() -> None:
    half = [Job(job.id, job.submit_ms // 2, job.work_ms, share=job.share) for job in JOBS]
    assert numbers(berth.compare(JOBS, "fifo", cluster=NODES, compress=2)) == numbers(
        berth.compare(half, "fifo", cluster=NODES)
    )


def test_events_of_all_runs_are_in_one_file_from_which_conservation_can_be_checked(tmp_path: Path) -> None:
    path = tmp_path / "it's events.parquet"
    berth.compare(JOBS, ["random", "fgd"], cluster=NODES, seeds=2, events=path)
    changes = """
        SELECT policy, seed, node, gpu, time_ms, sum(CASE kind WHEN 'start' THEN milli ELSE -milli END) AS change
        FROM read_parquet($path) WHERE gpu IS NOT NULL GROUP BY ALL
    """
    used = "sum(change) OVER (PARTITION BY policy, seed, node, gpu ORDER BY time_ms)"
    with duckdb.connect() as database:
        rows = database.execute(
            f"SELECT min(used), max(used) FROM (SELECT {used} AS used FROM ({changes}))", {"path": str(path)}
        ).fetchall()
        kinds = database.execute(
            "SELECT DISTINCT policy, seed, kind, count(*) FROM read_parquet($path) GROUP BY ALL ORDER BY ALL",
            {"path": str(path)},
        ).fetchall()
        columns = [
            row[0]
            for row in database.execute(
                "DESCRIBE SELECT * FROM read_parquet($path)", {"path": str(path)}
            ).fetchall()
        ]
    assert rows[0][0] >= 0
    assert 900 < rows[0][1] <= 1000
    assert kinds == [
        (policy, seed, kind, 60)
        for policy, seeds in (("fgd", (0,)), ("random", (0, 1)))
        for seed in seeds
        for kind in ("finish", "start", "submit")
    ]
    assert columns == [
        "time_ms",
        "kind",
        "job_id",
        "attempt",
        "node",
        "gpu",
        "milli",
        "mem_mib",
        "cpu_milli",
        "memory_mib",
        "reason",
        "shared",
        "policy",
        "seed",
    ]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_table_shows_itself() -> None:
    result = berth.compare("synthetic:demo?jobs=80", ["fgd", "sjf+best-fit"])
    table = result.table()
    assert repr(table) == str(table)
    lines = table.splitlines()
    assert lines[: len(result.answers)] == list(result.answers)
    assert ["metric", "unit", "fgd", "sjf+best-fit", "(oracle)"] in [line.split() for line in lines]
    assert "The same for all: " in table
    assert table.count("Rejected jobs") == 0
    assert "rejected jobs 0" in table
    found = result._repr_html_()  # a notebook shows no less than a terminal
    assert "<p>The same for all: " in found
    assert "rejected jobs 0" in found


def test_a_result_is_short_in_python_and_a_frame_where_one_is_wanted() -> None:
    result = berth.compare(JOBS, ["fgd", "sjf+best-fit"], cluster=NODES, seeds=2)
    assert len(repr(result)) < 200
    rows = result.rows()
    assert {(row["policy"], row["seed"]) for row in rows} == {(run.policy, run.seed) for run in result.runs}
    (wait,) = [row for row in rows if (row["policy"], row["seed"], row["metric"]) == ("fgd", 0, "Mean wait")]
    assert wait == {
        "policy": "fgd",
        "oracle": False,
        "seed": 0,
        "metric": "Mean wait",
        "unit": "seconds",
        "better": "less",
        "value": result.runs[0].summary.waiting_time_s.mean,
    }
    assert "<th>fgd</th>" in result._repr_html_()


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_frame_has_the_rows_or_says_what_to_install(library: str) -> None:
    result = berth.compare(JOBS, "fgd", cluster=NODES)
    made = {"pandas": result.to_pandas, "polars": result.to_polars, "pyarrow": result.to_arrow}[library]
    if importlib.util.find_spec(library) is None:
        with pytest.raises(berth.BerthError, match=f"pip install {library}"):
            made()
    else:
        assert len(made()) == len(result.rows())
        assert list(made().columns if library != "pyarrow" else made().column_names) == list(result.rows()[0])


def test_the_result_is_json_without_surprises(tmp_path: Path) -> None:
    result = berth.compare(JOBS, "fgd", cluster=NODES)
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert list(plain) == [
        *(
            "answers",
            "trace",
            "cluster",
            "policies",
            "seeds",
            "compress",
            "knowledge",
            "mode",
            "runs",
            "metrics",
            "skipped",
        ),
        "never_fitting",
    ]
    assert plain["cluster"] == {"nodes": 2, "gpus": 3}
    assert plain["knowledge"] == "oracle"
    assert (plain["trace"], plain["runs"][0]["jobs"], plain["runs"][0]["finished"]) == ("60 jobs", 60, 60)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, "the trace brings no cluster; say which with --cluster"),
        ({"cluster": NODES, "seeds": 0}, "at least one policy and one seed, not 1 and 0"),
        ({"cluster": NODES, "processes": 0}, "1 or more processes, not 0"),
        (
            {"cluster": NODES, "compres": 2},
            "no condition 'compres' of a comparison; there are compress, skip_bad",
        ),
        (
            {"cluster": NODES, "knowledge": "dreams"},
            "no knowledge 'dreams'; there are oracle, user, history, noisy",
        ),
        ({"cluster": NODES, "interference": "kind"}, "no interference model 'kind'"),
        ({"cluster": NODES, "compress": 0}, "compressed by a positive number, not by 0"),
        ({"cluster": NODES, "events": "/no/such/folder/e.parquet"}, "there is no folder '/no/such/folder'"),
    ],
)
def test_what_cannot_be_compared_is_refused(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError) as refusal:
        berth.compare(JOBS, "fgd", **keywords)  # type: ignore[arg-type]
    assert message in str(refusal.value)


def test_conditions_may_come_as_a_value_or_as_keywords_in_other_spellings() -> None:
    model = make_interference("mps")
    told = Conditions(interference=model, quotas=(("", 3),), compress=2)
    by_value = berth.compare(JOBS, "fifo", cluster=NODES, conditions=told)
    by_keyword = berth.compare(JOBS, "fifo", cluster=NODES, interference="mps", quotas={"": 3}, compress=2)
    assert by_keyword.conditions == replace(told, interference_name="mps")
    assert by_keyword.to_dict() == by_value.to_dict()
    assert by_value.to_dict() != berth.compare(JOBS, "fifo", cluster=NODES).to_dict()
    changed = berth.compare(JOBS, "fifo", cluster=NODES, conditions=told, compress=3)
    assert changed.conditions == replace(told, compress=3)


def test_a_trace_without_jobs_is_no_comparison(tmp_path: Path) -> None:
    empty = tmp_path / "jobs.csv"
    empty.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,-1,1,66.0,a\n")
    with pytest.raises(SettingError, match=r"has no jobs to replay; .*line 2, column 'duration'"):
        berth.compare(empty, "fifo", cluster=NODES, skip_bad=True)


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    seen = []
    for number in (1, 2):
        rows = "".join(f"2017-10-09 07:0{row}:55,60,1,60,a\n" for row in range(number))
        path.write_text(f"timestamp,duration,num_gpus,gpu_time,cluster\n{rows}")
        seen.append(berth.compare(path, "fifo", cluster=NODES).runs[0].summary.jobs)
    assert seen == [1, 2]


def test_a_failed_comparison_leaves_nothing_behind(tmp_path: Path) -> None:
    backwards = [Job("a", 5, 1), Job("b", 4, 1)]
    with pytest.raises(SimulationError):
        berth.compare(backwards, ["fifo", "sjf"], cluster=NODES, events=tmp_path / "e.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_result_is_drawn_from_python() -> None:
    result = berth.compare("synthetic:demo?jobs=40", ["fifo", "sjf"], seeds=1)
    for picture in ("waits", "completion", "allocation", "queue"):
        names = {trace.name or "" for trace in result.plot(picture).data}
        assert any("fifo" in name for name in names), picture
        assert any("sjf" in name for name in names), picture
    assert result.plot() == result.plot("waits")
    with pytest.raises(SettingError, match="no picture 'pie' of a comparison; there are waits, completion"):
        result.plot("pie")
