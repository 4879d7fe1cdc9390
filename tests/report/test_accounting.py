"""The report and the pictures: what they show of the samples, and that data stays data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from berth.cli.app import app
from berth.cli.stats import tables_of, usage_table
from berth.history.importing.sacct import import_text
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.plots.accounting import (
    calendar,
    gpus_over_time,
    parallel_coordinates,
    variable_cdfs,
    waiting_by_cause,
)
from berth.report.accounting import Head, write_accounting
from berth.statistics.accounting import NOTHING_USED, largest_first
from berth.statistics.spread import cdf
from tests.history import exports


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def history(tmp_path: Path) -> Path:
    evil = "<script>alert(1)</script>"
    rows = [
        exports.line(JobIDRaw=1),
        exports.line(JobIDRaw=2, JobName=evil, User=evil, Account=evil, Partition=evil, Comment="", NNodes=2),
        exports.line(JobIDRaw=3, State="FAILED", Comment="tensorflow"),
    ]
    import_text(open_history(tmp_path / "h"), exports.write(tmp_path / "f", rows), Options())
    return tmp_path / "h"


def test_the_report_shows_usage_and_nothing_of_a_job_becomes_markup(history: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    assert run("report", out, "--history", history, "--by", "user,server") == f"wrote {out}: 3 jobs\n"
    page = out.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("<script") == page.count("</script>")
    assert not re.search(r'(?:src|href)="http', page.partition("<script>")[0])
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [
        "Usage by user and server",
        "Who used what",
        "GPU servers over time",
        "How jobs run",
        "Distributions",
    ]


@pytest.mark.slow
def test_the_reports_table_is_in_the_order_of_its_measure(tmp_path: Path) -> None:
    rows = [
        exports.line(JobIDRaw=1, Comment="vasp", AllocTRES="cpu=1,gres/gpu=8", End="2026-01-01T00:40:00"),
        exports.line(JobIDRaw=2, Comment="caffe", AllocTRES="cpu=1,gres/gpu=1", End="2026-01-01T02:10:00"),
    ]
    import_text(open_history(tmp_path / "h"), exports.write(tmp_path / "f", rows), Options())
    for measure, order in (("gpu-hours", ["vasp", "caffe"]), ("run-hours", ["caffe", "vasp"])):
        run("report", tmp_path / "out.html", "--history", tmp_path / "h", "--measure", measure)
        page = (tmp_path / "out.html").read_text(encoding="utf-8")
        assert re.findall(r'data-label="application">(.*?)</th>', page) == order
        bars = json.loads(page.partition('id="by-application-data">')[2].partition("</script>")[0])
        assert bars["layout"]["yaxis"]["ticktext"] == order


@pytest.mark.parametrize(
    ("jobs", "drawn"),
    [
        ("vasp caffe vasp", "vasp"),
        pytest.param("vasp caffe vasp caffe", "both", marks=pytest.mark.slow),
        pytest.param("vasp", "vasp", marks=pytest.mark.slow),
    ],
)
def test_an_application_of_one_attempt_has_no_lines_beside_others(
    jobs: str, drawn: str, tmp_path: Path
) -> None:
    rows = [exports.line(JobIDRaw=at, Comment=name) for at, name in enumerate(jobs.split(), 1)]
    import_text(open_history(tmp_path / "h"), exports.write(tmp_path / "f", rows), Options())
    run("report", tmp_path / "out.html", "--history", tmp_path / "h")
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    found = set(re.findall(r'aria-label="Parallel coordinates of (.*?)"', page))
    assert found == ({"vasp", "caffe"} if drawn == "both" else {drawn})


def test_long_names_are_never_cut_off(tmp_path: Path) -> None:
    names = [f"a_partition_with_a_name_that_goes_on_{number}" for number in (1, 2)]
    rows = [exports.line(JobIDRaw=at, Partition=name, Account=name) for at, name in enumerate(names, 1)]
    import_text(open_history(tmp_path / "h"), exports.write(tmp_path / "f", rows), Options())
    text = run("stats", "--history", tmp_path / "h", "--by", "account,server")
    assert [text.count(name) for name in names] == [2, 2]
    assert "…" not in text
    with tables_of(tmp_path / "h", "", "", None) as tables:
        found = tables.usage(["account", "server"])
    for width in (80, 120):
        console = Console(width=width, file=StringIO(), record=True)
        console.print(usage_table(["account", "server"], "jobs", found, 2.0))
        told = console.export_text()
        assert max(map(len, told.splitlines())) <= width
        assert "…" not in told
        rule = next(at for at, line in enumerate(told.splitlines()) if "──" in line)
        folded = "".join(line.split()[0] for line in told.splitlines()[rule + 1 :] if line.strip())
        assert sorted(folded.split("a_partition_")) == [
            "",
            *(name.removeprefix("a_partition_") for name in names),
        ]
        assert told.count("50.00 %") == 2
        assert sum(line.rstrip().endswith(" 0") for line in told.splitlines()) == 2  # the last column, too


def test_a_period_without_jobs_has_a_page_that_says_so(history: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    with tables_of(history, "2030-01-01", "", None) as tables:
        head = Head("GPU accounting", "from 2030 on", "", "", "")
        write_accounting(out, tables, head, by=["user"], measure="jobs")
    assert "No job ended in this period." in out.read_text(encoding="utf-8")


def test_stats_of_the_samples(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    import_text(open_history(tmp_path / "h"), real_data("../slurm/samples/sacct_X_us.txt"), Options("neuron"))
    answer = json.loads(run("stats", "--history", tmp_path / "h", "--measure", "run-hours", "--json"))
    assert [(row["application"], row["jobs"], round(row["gpu_hours"], 3)) for row in answer["rows"]] == [
        ("python", 202, 0.004),
        ("pytorch", 12, 0.154),
        ("unknown", 15, 0.024),
        ("lammps", 1, 0),
        ("caffe", 6, 0.014),
        ("vasp", 1, 0.013),
        ("tensorflow", 1, 0.024),
        ("gromacs", 1, 0),
        ("charmm", 2, 0.002),
        ("openfoam", 1, 0),
    ]
    totals = answer["totals"]
    assert (totals["tries"], totals["jobs"], totals["users"]) == (242, 242, 4)
    assert sum(row["share"] for row in answer["rows"]) == pytest.approx(1)


def test_only_and_dimensions_are_checked(history: Path) -> None:
    answer = json.loads(
        run("stats", "--history", history, "--json", "--only", "application=tensorflow", "--by", "state")
    )
    assert [(row["state"], row["jobs"], row["wasted_gpu_hours"]) for row in answer["rows"]] == [
        ("failed", 1, 2.0)
    ]


@pytest.mark.parametrize(
    ("jobs", "lines"), [pytest.param(14, 14, marks=pytest.mark.slow), (500, 500), (501, 1)]
)
def test_up_to_500_attempts_each_is_a_line_and_of_more_the_like_are_one(
    tmp_path: Path, jobs: int, lines: int
) -> None:
    rows = [exports.line(JobIDRaw=number) for number in range(jobs)]
    import_text(open_history(tmp_path / "h"), exports.write(tmp_path / "f", rows), Options())
    run("report", tmp_path / "x.html", "--history", tmp_path / "h")
    title = re.findall(r"pytorch: [\w, ]+ attempts[\w, ]*", (tmp_path / "x.html").read_text())[0]
    assert title == f"pytorch: {jobs:,} attempts" + (", 1 line stands for them" if lines < jobs else "")


def test_an_axis_that_nobody_measured_is_left_out() -> None:
    lines = np.array([[1.0, 2, 0.5, 3, np.nan, np.nan], [4.0, 16, 0, 1, np.nan, np.nan]])
    figure = parallel_coordinates(lines, np.array([3, 1]), "pytorch <b>")
    trace = figure.data[0]
    assert [axis.label for axis in trace.dimensions] == ["nNODE", "nGPU", "WAIT_h", "RUN_h", "attempts"]
    assert [10**at - 1 for at in trace.dimensions[-1]["values"]] == pytest.approx([3, 1])
    assert list(trace.line.color) == [1.0, 4.0]
    assert figure.layout.meta == {"narrow_hides": []}  # a narrow screen has room for five
    lines[:, 4] = 0.5
    assert parallel_coordinates(lines, np.array([3, 1]), "pytorch").layout.meta == {"narrow_hides": ["nNODE"]}
    lines[:, 4:] = 0.5
    both = parallel_coordinates(lines, np.array([3, 1]), "pytorch").layout.meta
    assert both == {"narrow_hides": ["nNODE", "attempts"]}
    lines[:, 4:] = np.nan
    each = parallel_coordinates(lines, np.array([1, 1]), "pytorch").data[0]  # not thinned
    assert [axis.label for axis in each.dimensions] == ["nNODE", "nGPU", "WAIT_h", "RUN_h"]
    assert figure.layout.title.text == "pytorch &lt;b&gt;: 4 attempts, 2 lines stand for them"


def test_axes_of_parallel_coordinates_can_be_read() -> None:
    lines = np.array([[1.0, 2, 0.00005, 3, 0.1, 0.5], [1.0, 16, 0, 1, 0.2, 0.25]])
    trace = parallel_coordinates(lines, np.array([1, 1]), "pytorch").data[0]
    assert [list(axis.range) for axis in trace.dimensions[4:]] == [[0, 1], [0, 1]]  # fractions, whatever came
    assert trace.dimensions[4].ticktext == ("0", "0.2", "0.4", "0.6", "0.8", "1")
    wait = trace.dimensions[2]
    assert (wait.ticktext[0], wait.ticktext[-1]) == ("0 s", "0.18 s")
    assert (list(wait["values"]), wait.tickvals[-1]) == (
        [0.00005, 0],
        pytest.approx(0.00005),
    )  # ranges are in hours
    assert not trace.line.showscale  # all have as many nodes
    assert not any(axis.constraintrange for axis in trace.dimensions)  # all lines are seen at first


def test_hours_that_differ_much_have_a_logarithmic_axis_on_which_nothing_has_a_place() -> None:
    lines = np.array([[1.0, 1, 0, 0.5, 0.1, 0.5], [1.0, 1, 0, 0.5, 0.2, 0.5], [1.0, 1, 0, 200, 0.2, 0.25]])
    trace = parallel_coordinates(lines, np.array([1, 1, 1]), "pytorch").data[0]
    wait, run = trace.dimensions[2:4]
    assert dict(trace.meta) == {"RUN_h": 1 / 60}  # the waits are all alike
    assert (list(wait["values"]), list(wait.range)) == ([0, 0, 0], [0, 1])
    assert run.ticktext == ("0", "0.1", "1", "10", "100")
    hours = [trace.meta["RUN_h"] * (10**at - 1) for at in run["values"]]
    assert hours == pytest.approx([0.5, 0.5, 200])
    assert run.range[0] == 0
    assert run.range[1] == max(run["values"])


def test_few_hours_are_drawn_in_the_unit_that_fits() -> None:
    figure = waiting_by_cause({"resources": 0.05, "priority": 0.0})
    assert list(figure.data[0].x) == [3.0, 0.0]
    assert figure.layout.title.text == "Minutes waited by cause"
    assert figure.layout.xaxis.title.text == "minutes waited, of all jobs together"


def test_a_distribution_of_few_hours_is_drawn_in_the_unit_that_fits() -> None:
    figure = variable_cdfs({"pytorch": {"WAIT_h": cdf([0.0005, 0.001])}}, "WAIT_h")
    assert list(figure.data[0].x) == pytest.approx([1.8, 1.8, 3.6, 1.04 * 3.6])
    assert figure.layout.title.text == "pytorch: WAIT, seconds"
    assert figure.layout.xaxis.title.text == "time waited, seconds"
    assert figure.layout.xaxis.exponentformat == "none", "0.0008, not 800µ"


def test_a_table_of_few_gpu_hours_has_one_unit_in_its_heading(tmp_path: Path) -> None:
    rows = [
        exports.line(JobIDRaw=number, User=f"user{number}", End=f"2026-01-01T00:10:0{number}")
        for number in (1, 2)
    ]
    import_text(open_history(tmp_path / "h"), exports.write(tmp_path / "f", rows), Options())
    run("report", tmp_path / "x.html", "--history", tmp_path / "h", "--by", "user")
    page = (tmp_path / "x.html").read_text()
    heads = re.findall(r'<th scope="col">([^<]*)</th>', page)
    assert heads[:3] == ["user", "GPU-seconds", "run-seconds"]
    assert 'data-label="GPU-seconds">4.00</td>' in page


def test_groups_that_used_as_much_stand_in_the_order_that_people_count_in() -> None:
    rows = [replace(NOTHING_USED, keys=(name,)) for name in ("user10", "user2", "user1")]
    assert [row.keys[0] for row in largest_first(rows, "gpu-hours")] == ["user1", "user2", "user10"]


def test_a_server_type_has_a_line_from_its_first_day_to_its_last() -> None:
    days = {"a100": (np.array([5]), np.array([12.0])), "v100": (np.array([6, 8]), np.array([12.0, 24.0]))}
    long, lone = gpus_over_time(days).data
    assert list(long.x) == ["1970-01-06", "1970-01-07", "1970-01-08", "1970-01-09"]
    assert (list(long.y), list(lone.y)) == ([None, 0.5, 0, 1.0], [0.5, None, None, None])
    assert lone.marker.size[0] > 0  # one day is no line: it has a mark


def test_gpus_of_one_day_are_bars() -> None:
    (bars,) = gpus_over_time(
        {"a100": (np.array([5]), np.array([12.0])), "v100": (np.array([5]), np.array([24.0]))}
    ).data
    assert (bars.type, list(bars.x), list(bars.hovertext)) == ("bar", [1.0, 0.5], ["v100", "a100"])


def test_jobs_whose_nodes_are_unknown_have_no_axis_of_nodes() -> None:
    lines = np.array([[np.nan, 2, 0.5, 3, 0.1, 0.2], [np.nan, 16, 0, 1, 0.3, 0.4]])
    trace = parallel_coordinates(lines, np.array([1, 1]), "pytorch").data[0]
    assert [axis.label for axis in trace.dimensions] == ["nGPU", "WAIT_h", "RUN_h", "uGPUcore", "uGPUmem"]
    assert not trace.line.showscale


def test_a_distribution_is_drawn_from_nothing_to_all() -> None:
    figure = variable_cdfs({"pytorch": {"WAIT_h": cdf([1.0, 1.0, 1.5, 2.0])}, "vasp": {}}, "WAIT_h")
    (trace,) = figure.data
    assert (list(trace.x), list(trace.y)) == ([1, 1, 1.5, 2, 2.08], [0, 50, 75, 100, 100])
    assert figure.layout.title.text == "pytorch: WAIT_h, hours"
    assert list(figure.layout.xaxis.range) == [0, 2.08]
    assert figure.layout.xaxis.title.text == "time waited, hours"


def test_a_distribution_of_hours_that_differ_much_has_a_logarithmic_axis() -> None:
    figure = variable_cdfs({"pytorch": {"RUN_h": cdf([0.1, 0.1, 0.1, 99])}}, "RUN_h")
    (trace,) = figure.data
    hours = [trace.meta["x"] * (10**at - 1) for at in trace.x]
    assert hours == pytest.approx([0.1, 0.1, 99, 1.04 * 99])
    assert figure.layout.xaxis.ticktext == ("0", "0.1", "1", "10", "100")


@pytest.mark.parametrize(
    ("variable", "words"),
    [("uGPUcore", "mean use of its GPUs, as a fraction"), ("nGPU", "GPUs of an attempt")],
)
def test_axes_of_distributions_say_in_words_what_a_variable_is(variable: str, words: str) -> None:
    figure = variable_cdfs({"pytorch": {variable: cdf([0.5, 0.75])}}, variable)
    assert figure.layout.xaxis.title.text == words
    assert figure.layout.xaxis.range == ((0, 1.0) if variable == "uGPUcore" else (0, 0.78))
    assert figure.layout.yaxis.title.text == "attempts with at most this"


def test_nodes_and_gpus_are_counted_in_whole_numbers_also_where_all_have_one() -> None:
    ones = {"nNODE": cdf([1.0, 1.0])}
    figure = variable_cdfs({"<b>": ones, "vasp": ones}, "nNODE")
    assert figure.layout.title.text == "nNODE, nodes"
    assert (list(figure.layout.xaxis.tickvals), list(figure.layout.xaxis.range)) == ([0, 1], [0, 1.04])


def test_causes_are_drawn_by_the_hours_waited_and_the_smallest_are_one_bar() -> None:
    figure = waiting_by_cause({f"cause {n:02}": float(n) for n in range(1, 15)})
    (bars,) = figure.data
    assert list(bars.x) == [*map(float, range(14, 2, -1)), 3.0]
    assert list(bars.customdata) == [*(f"cause {n:02}" for n in range(14, 2, -1)), "2 more"]
    assert figure.layout.title.text == "Hours waited by cause"


@pytest.mark.parametrize(("last", "has_one"), [("2026-01-27", False), ("2026-01-28", True)])
def test_a_calendar_is_drawn_from_four_weeks_on(last: str, has_one: bool, tmp_path: Path) -> None:
    rows = [
        exports.line(JobIDRaw=at, Start=f"{day}T00:00:00", End=f"{day}T01:00:00")
        for at, day in enumerate(("2026-01-01", last), 1)
    ]
    import_text(open_history(tmp_path / "h"), exports.write(tmp_path / "f", rows), Options())
    run("report", tmp_path / "out.html", "--history", tmp_path / "h", "--measure", "idle-gpu-hours")
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert ('id="calendar-data"' in page) is has_one
    assert "of all idle GPU-hours in the period" in page


def test_each_year_of_a_calendar_has_a_row() -> None:
    figure = calendar(np.array([18262, 20454]), np.array([1.0, 2.0]))  # 2020-01-01 and 2026-01-01
    assert [trace.yaxis for trace in figure.data] == ["y", "y2"]
    assert float(np.nansum([np.nansum(trace.z) for trace in figure.data])) == 3.0
