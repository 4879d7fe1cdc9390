"""Tables of other columns (`--map`)."""

from __future__ import annotations

from pathlib import Path

import pytest

import berth
from berth.errors import SettingError, TraceError
from berth.model import FOREVER_MS, Share
from berth.traces.fields import TooLargeError, decimal

TABLE = """job_name,submitted,secs,cards,who
late,2026-11-22 08:30:00,3600,1,ann
half,2026-11-22T08:31:00.5,600,0.5,bob
first,2026-11-22 08:29:00,600,2,bob
"""
MAP = "id=job_name,submit=submitted,run=secs,gpus=cards,user=who"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "own.csv"
    path.write_text(TABLE)
    return path


def test_columns_by_their_names_make_jobs(table: Path) -> None:
    trace = berth.read_trace(table, columns=MAP)
    jobs = list(trace.jobs())
    assert [(job.id, job.submit_ms, job.work_ms, job.user) for job in jobs] == [
        ("first", 0, 600_000, "bob"),
        ("late", 60_000, 3_600_000, "ann"),
        ("half", 120_500, 600_000, "bob"),
    ]
    assert [(job.gpus, job.share, job.nodes) for job in jobs] == [
        (2, Share(), 0), (1, Share(), 1), (1, Share(500), 1),
    ]  # fmt: skip
    assert [job.id for job in berth.read(trace, file_order=True)] == ["late", "half", "first"]


@pytest.mark.slow
def test_the_map_goes_to_the_processes_of_a_sweep(table: Path) -> None:
    trace = berth.read_trace(table, columns={"id": "job_name", "submit": "submitted", "run": "secs"})
    result = berth.compare(trace, ["fgd", "sjf"], cluster="1x4:V100", processes=2)
    assert {run.summary.finished for run in result.runs} == {3}


def test_a_job_runs_from_its_start_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "ran.csv"
    path.write_text("id,submit,start,end\na,100,110,115.5\nb,99,120,119\n")
    trace = berth.read_trace(path, columns="id=id,submit=submit,start=start,end=end")
    with pytest.raises(TraceError, match="line 3, column 'end': '119'; expected an end that is not before"):
        list(trace.jobs())
    bad: list[TraceError] = []
    (job,) = trace.jobs(skip_bad=bad)
    assert (job.submit_ms, job.work_ms, len(bad)) == (0, 5500, 1)


def test_an_end_before_the_start_is_told_as_the_file_has_it(tmp_path: Path) -> None:
    path = tmp_path / "ran.csv"
    path.write_text("id,submit,start,end\na,2026-11-22 08:00:00,2026-11-22 09:30:00,2026-11-22 08:30:00\n")
    trace = berth.read_trace(path, columns="id=id,submit=submit,start=start,end=end")
    with pytest.raises(TraceError) as told:
        list(trace.jobs())
    assert str(told.value) == (
        f"{path}, line 2, column 'end': '2026-11-22 08:30:00'; expected an end that is not before the start"
    )


@pytest.mark.parametrize(("mark", "said"), [("\t", "tabs (a TSV file)"), (";", "semicolons"), ("|", "'|'")])
def test_a_table_that_commas_do_not_split_is_told_what_does(tmp_path: Path, mark: str, said: str) -> None:
    path = tmp_path / "jobs.tsv"
    path.write_text(mark.join(("id", "submit", "run")) + "\n" + mark.join("a12") + "\n")
    with pytest.raises(TraceError) as told:
        list(berth.read_trace(path, columns="id=id,submit=submit,run=run").jobs())
    assert str(told.value).endswith(
        f"Its columns are split by {said}, and a trace's by commas: save it as CSV"
    )


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("id=job_name,submit=submitted", r"no column for run \(or start and end\)"),
        ("id=job_name,submit=submitted,run=secs,run=cards", "the column of run twice: secs and cards"),
        (
            "id=job_name,when=submitted",
            "--map 'when=submitted'; expected FIELD=COLUMN with a field of id, submit",
        ),
        ("id", "--map 'id'; expected FIELD=COLUMN"),
    ],
)
def test_a_map_that_cannot_be_is_refused(table: Path, columns: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        berth.read_trace(table, columns=columns)


def test_a_column_with_a_comma_in_its_name_is_refused(table: Path) -> None:
    with pytest.raises(SettingError, match="the column 'run time, s' for run has a comma in its name"):
        berth.read_trace(table, columns={"id": "job_name", "submit": "submitted", "run": "run time, s"})


def test_a_column_that_is_not_there_and_a_value_that_is_none_are_told(table: Path) -> None:
    with pytest.raises(
        TraceError, match="expected a column 'gpu' for gpus, as --map says; there are job_name"
    ):
        berth.read_trace(table, columns="id=job_name,submit=submitted,run=secs,gpus=gpu")
    table.write_text(TABLE + "x,2026-11-22 08:30:00,60,1.5,eve\n")
    with pytest.raises(TraceError, match=r"line 5, column 'cards': '1\.5'; expected a whole number of GPUs"):
        list(berth.read_trace(table, columns=MAP).jobs())
    table.write_text(TABLE + "x,2026-11-22 08:30:00,1e17,1,eve\n")
    for unit, most in ((":h", "in h, at most 320,255,973,501"), ("", "at most 1,152,921,504,606,846")):
        with pytest.raises(TraceError, match=rf"line 5, column 'secs': '1e17'; .*{most}$"):
            list(berth.read_trace(table, columns=MAP.replace("secs", f"secs{unit}")).jobs())


@pytest.mark.parametrize(
    ("column", "most"),
    [
        ("secs:us", 1_152_921_504_606_846_844_928),
        ("secs:ms", 1_152_921_504_606_846_848),
        ("secs:min", 19_215_358_410_114),
        ("secs:h", 320_255_973_501),
    ],
)
def test_the_most_that_an_error_names_is_taken(column: str, most: int, table: Path) -> None:
    columns = MAP.replace("secs", column)
    table.write_text(TABLE + "x,2026-11-22 08:30:00,1e30,1,eve\n")
    with pytest.raises(TraceError, match=rf"line 5, .*at most {most:,}$"):
        list(berth.read_trace(table, columns=columns).jobs())
    table.write_text(TABLE + f"x,2026-11-22 08:30:00,{most},1,eve\n")
    assert max(job.work_ms or 0 for job in berth.read_trace(table, columns=columns).jobs()) < FOREVER_MS


def test_the_most_gpus_that_an_error_names_is_a_number_that_is_taken(table: Path) -> None:
    field = decimal("gpus")
    with pytest.raises(TooLargeError) as caught:
        field.parse("1e19")
    assert field.parse(str(caught.value.args[0])) < FOREVER_MS


@pytest.mark.parametrize(
    ("gpus", "nodes", "expected"),
    [
        ("4", "3", "a multiple of 3, as many on each of its nodes"),
        ("0.5", "2", "a multiple of 2, as many on each of its nodes"),
        ("6", "1", "at most 4, as no node has more than 4 GPUs"),
        ("9", "0", "at most 8 GPUs, the cluster has no more"),
    ],
)
def test_a_map_refuses_by_line_what_berths_own_table_refuses(
    gpus: str, nodes: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"id,submit_ms,work_ms,gpus,nodes\na,0,1,1,1\nb,0,1,{gpus},{nodes}\n")
    columns = "id=id,submit=submit_ms,run=work_ms,gpus=gpus,nodes=nodes"
    for trace in (berth.read_trace(path, columns=columns), berth.read_trace(path)):
        with pytest.raises(TraceError) as caught:
            berth.compare(trace, "fifo", cluster="2x4:V100")
        assert "line 3, column 'gpus'" in str(caught.value)
        if trace.format != "berth":
            assert expected in str(caught.value)


def test_sizes_beyond_what_a_simulation_counts_are_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,submit,run,cpus\na,0,1,1500000000000000\n")
    with pytest.raises(TraceError, match="line 2, column 'cpus': '1500000000000000'; expected less than"):
        berth.compare(
            berth.read_trace(path, columns="id=id,submit=submit,run=run,cpus=cpus"),
            "fifo",
            cluster="1x1:V100",
        )
