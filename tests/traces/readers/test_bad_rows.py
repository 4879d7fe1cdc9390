"""What is wrong with a file is told by file, line, column, value and what was expected."""

from __future__ import annotations

import gzip
import pickle
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from berth import traces
from berth.errors import TraceError

OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"
GOOD = "a,1000,1024,1,500,,0,10,5\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
OWN = "id,submit_ms,work_ms,gpus,nodes\n"
GOOD_OWN = "a,0,1,1,1\n"
SWF = "; Version: 2.2\n1 0 0 5 2 -1 -1 4 90 -1 1 3 1 -1 1 -1 -1 -1\n"
NODES = traces.read_nodes("2x4:T4")


@dataclass(frozen=True)
class Bad:
    """A file that is wrong, and what must be said of it."""

    name: str
    text: str
    line: int | None
    column: str | None
    value: str | None
    expected: str
    good_jobs: int = 0
    """How many rows of the file are right."""


# fmt: off
BAD = [
    Bad("column missing from row", OPENB + GOOD + "b,1,1\n", 3, "num_gpu", None, "from 0 to 4", 1),
    Bad("column missing from header", "name,cpu_milli,num_gpu,gpu_milli\n", 1, "memory_mib",
        "name, cpu_milli, num_gpu, gpu_milli", "this column too"),
    Bad("negative time", OPENB + "b,1,1,0,0,,-5,10,5\n", 2, "creation_time", "-5", "seconds, 0 or more"),
    Bad("negative count", OPENB + "b,-1,1,0,0,,0,10,5\n", 2, "cpu_milli", "-1",
        "a whole number of 0 or more"),
    Bad("text in a number", OPENB + "b,many,1,0,0,,0,10,5\n", 2, "cpu_milli", "many", "a whole number"),
    Bad("underscore in a number", OPENB + "b,1_000,1,0,0,,0,10,5\n", 2, "cpu_milli", "1_000",
        "a whole number"),
    Bad("digits of another script", OPENB + "b,٣,1,0,0,,0,10,5\n", 2, "cpu_milli", "٣", "a whole number"),
    Bad("nan", OPENB + "b,1,1,0,0,,nan,10,5\n", 2, "creation_time", "nan", "seconds"),
    Bad("inf", OPENB + "b,1,1,0,0,,0,inf,5\n", 2, "deletion_time", "inf", "seconds"),
    Bad("a number without end", OPENB + "b,1,1,0,0,,0,1e99,5\n", 2, "deletion_time", "1e99", "seconds"),
    Bad("unknown model", OPENB + GOOD + "b,1,1,1,500,T4|H9,0,10,5\n", 3, "gpu_spec", "T4|H9",
        "there are T4", 1),
    Bad("more GPUs than any node", OPENB + "b,1,1,5,1000,,0,10,5\n", 2, "num_gpu", "5", "from 0 to 4 (GPUs;"),
    Bad("part of several GPUs", OPENB + "b,1,1,2,500,,0,10,5\n", 2, "gpu_milli", "500", "1000, as the pod"),
    Bad("no part of a GPU", OPENB + "b,1,1,1,0,,0,10,5\n", 2, "gpu_milli", "0", "from 1 to 1000"),
    Bad("duplicate name", OPENB + GOOD + "b,1,1,0,0,,1,10,5\n" + GOOD, 4, "name", "a", "no row above", 2),
    Bad("no name", OPENB + ",1,1,0,0,,0,10,5\n", 2, "name", "", "not empty"),
    Bad("deleted before scheduled", OPENB + "b,1,1,0,0,,0,4,5\n", 2, "deletion_time", "4", "no earlier than"),
    Bad("scheduled before created", OPENB + "b,1,1,0,0,,6,9,5\n", 2, "scheduled_time", "5",
        "no earlier than"),
    Bad("more fields than columns", OPENB + "b,1,1,0,0,,0,10,5,6\n", 2, None, "b,1,1,0,0,,0,10,5,6",
        "9 columns"),
    Bad("quote that does not end", OPENB + GOOD + '"b,1,1,0,0,,0,10,5\n', 3, None, None,
        "well-formed CSV row", 1),
    Bad("quote that opens in the middle", OPENB + GOOD + '"b,1,1,0,0,,0,10,5\n' + "c,1,1,0,0,,0,10,5\n" * 5, 3, None,
        None, "well-formed CSV row (a quote in it never closes)", 1),
    Bad("a whole number too large", OPENB + f"b,{10**19},1,0,0,,0,10,5\n", 2, "cpu_milli", f"{10**19}",
        "a whole number of 0 or more, at most 1,152,921,504,606,846,976"),
    Bad("a time too late", OPENB + "b,1,1,0,0,,0,1e16,5\n", 2, "deletion_time", "1e16",
        "at most 1,152,921,504,606,846"),
    Bad("after comments", "# one\n# two\n" + OPENB + "b,x,1,0,0,,0,10,5\n", 4, "cpu_milli", "x", "a whole"),
    Bad("after a quoted line end", OPENB + '"a\nb",1,1,0,0,,0,10,5\nc,x,1,0,0,,0,10,5\n', 4, "cpu_milli", "x",
        "a whole number", 1),
    Bad("in a row of two lines", OPENB + GOOD + '"a\nb",x,1,0,0,,0,10,5\n', 3, "cpu_milli", "x",
        "a whole", 1),
    Bad("after a blank line", OPENB + GOOD + "\n\nb,x,1,0,0,,0,10,5\n", 5, "cpu_milli", "x",
        "a whole number", 1),
    Bad("no such day", PHILLY + "2017-02-30 07:00:00,1,1,1,c\n", 2, "timestamp", "2017-02-30 07:00:00",
        "a time"),
    Bad("no such hour", PHILLY + "2017-02-03 24:00:00,1,1,1,c\n", 2, "timestamp", "2017-02-03 24:00:00",
        "a time"),
    Bad("no GPU", PHILLY + "2017-02-03 04:00:00,1,0,1,c\n", 2, "num_gpus", "0", "from 1 to 8"),
    Bad("more GPUs than the cluster", PHILLY + "2017-02-03 04:00:00,1,9,1,c\n", 2, "num_gpus", "9",
        "from 1 to 8"),
    Bad("negative duration", PHILLY + "2017-02-03 04:00:00,-1.5,1,1,c\n", 2, "duration", "-1.5", "seconds"),
    Bad("an uneven gang", OWN + "a,0,1,3,2\n", 2, "gpus", "3", "a multiple of 2"),
    Bad("more GPUs than two nodes", OWN + "a,0,1,8,1\n", 2, "gpus", "8", "at most 4"),
    Bad("an id twice", OWN + "a,0,1,1,1\nb,0,1,1,1\na,0,1,1,1\n", 4, "id", "a", "no row above", 2),
    Bad("empty file", "", None, None, None, "the file is empty"),
    Bad("only comments", "# nothing\n\n", None, None, None, "the file is empty"),
    Bad("unknown header", "x,y\n1,2\n", 1, None, "x, y",
        "or --map to say what the columns are; the formats: openb (name, cpu_milli"),
    Bad("split by semicolons", "id;submit_ms;work_ms\na;0;1\n", 1, None, "id;submit_ms;work_ms",
        "a header of several columns. Its columns are split by semicolons, and a trace's by commas: save it as CSV"),
    Bad("some times but not all", "name,cpu_milli,memory_mib,num_gpu,gpu_milli,deletion_time\n", 1,
        "creation_time", "name, cpu_milli, memory_mib, num_gpu, gpu_milli, deletion_time", "this column too"),
    Bad("a file of another kind", "\x93NUMPY\x01" + "x" * 9000, None, None, None, "a trace: CSV with a header"),
    Bad("a field without end", OWN + GOOD_OWN + '"' + "x" * 200_000, 3, None, None, "well-formed CSV row", 1),
    Bad("a quote in an SWF file", SWF + SWF.replace("0 0 5", '0 0 "5'), 4, "run_time", '"5', "seconds", 1),
    Bad("a comma in an SWF file", SWF + SWF.replace("0 0 5", "0 0 5,5"), 4, "run_time", "5,5", "seconds", 1),
    Bad("a column twice", "id,submit_ms,work_ms,id\n", 1, "id", None, "one column 'id'"),
]
# fmt: on


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_bad_row_is_told_by_line_column_value_and_what_was_expected(bad: Bad, tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(bad.text, "utf-8")
    with pytest.raises(TraceError) as caught:
        list(traces.read(path, nodes=NODES))
    error = caught.value
    assert (error.path, error.line, error.column, error.value) == (str(path), bad.line, bad.column, bad.value)
    assert bad.expected in error.expected


@pytest.mark.parametrize(
    "bad", [bad for bad in BAD if bad.line != 1 and bad.line is not None], ids=lambda bad: bad.name
)
def test_skipping_lists_each_bad_row_and_yields_the_good_ones(bad: Bad, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(bad.text, "utf-8")
    skipped: list[TraceError] = []
    jobs = list(traces.read(path, nodes=NODES, skip_bad=skipped))
    assert [(error.line, error.column, error.value) for error in skipped] == [
        (bad.line, bad.column, bad.value)
    ]
    assert len(jobs) == bad.good_jobs


@pytest.mark.slow
def test_a_gzip_that_is_cut_short_yields_what_could_be_read_and_is_told(tmp_path: Path) -> None:
    rows = "".join(
        f"pod-{index:05d},{index * 7919 % 9973},1024,0,0,,{index},{index + 9},{index}\n"
        for index in range(20_000)
    )
    packed = gzip.compress((OPENB + rows).encode())
    path = tmp_path / "trace"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(TraceError, match="a whole gzip file, but it is cut short or damaged"):
        list(traces.read(path))
    skipped: list[TraceError] = []
    jobs = list(traces.read(path, skip_bad=skipped))
    assert 5_000 < len(jobs) < 15_000
    assert [job.id for job in jobs] == [f"pod-{index:05d}" for index in range(len(jobs))]
    assert [error.line for error in skipped] == [len(jobs) + 2]


def test_a_gzip_that_is_damaged_is_told(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress((OPENB + GOOD * 1).encode()))
    packed[-6] ^= 0xFF
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(packed)
    with pytest.raises(TraceError, match="damaged"):
        list(traces.read(path))


def test_a_wrong_encoding_is_told_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(OPENB.encode() + GOOD.encode() + "Jürgen,1,1,0,0,,0,10,5\n".encode("latin-1"))
    with pytest.raises(TraceError) as caught:
        list(traces.read(path))
    assert (caught.value.line, caught.value.column) == (3, "name")
    assert "UTF-8" in caught.value.expected
    assert str(caught.value).isprintable()
    path.write_bytes((OPENB + GOOD).encode("utf-16"))
    with pytest.raises(TraceError, match="text in UTF-8, but the file begins as UTF-16"):
        list(traces.read(path))


def test_a_path_that_is_not_there_or_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as missing:
        list(traces.read(tmp_path / "nothing.csv"))
    assert str(missing.value) == f"{tmp_path / 'nothing.csv'}: no such file"
    assert str(pickle.loads(pickle.dumps(missing.value))) == str(missing.value)
    with pytest.raises(TraceError, match=f"{tmp_path}; expected a file, or a folder with Parquet files"):
        list(traces.read(tmp_path))


def test_a_file_of_anything_is_no_trace_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "noise.csv"
    path.write_bytes(random.Random(1).randbytes(4000))
    with pytest.raises(TraceError) as caught:
        list(traces.read(path))
    assert (
        str(caught.value)
        == f"{path}; expected a trace: CSV with a header, Parquet or SWF, but it is none of these"
    )


def test_without_a_cluster_any_model_and_number_of_gpus_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(OPENB + "b,1,1,99,1000,H9000,0,10,5\n", "utf-8")
    assert [(job.gpus, job.models) for job in traces.read(path)] == [(99, ("H9000",))]
    with pytest.raises(TraceError, match="gpu"):
        list(traces.read(path, nodes=NODES))


@pytest.mark.parametrize("change", ["bom", "crlf", "quoted", "extra columns", "other order", "gzip"])
def test_the_same_rows_in_another_dress_are_the_same_jobs(change: str, tmp_path: Path) -> None:
    text = OPENB + GOOD + "b,1000,1024,0,0,,1,10,5\n"
    plain = tmp_path / "plain.csv"
    plain.write_text(text, "utf-8")
    lines = text.splitlines()
    dressed = {
        "bom": "\ufeff" + text,
        "crlf": text.replace("\n", "\r\n"),
        "quoted": "\n".join(",".join(f'"{field}"' for field in line.split(",")) for line in lines),
        "extra columns": "\n".join(f"note{number},{line}" for number, line in enumerate(lines)),
        "other order": "\n".join(",".join(reversed(line.split(","))) for line in lines),
        "gzip": text,
    }[change]
    data = dressed.encode()
    path = tmp_path / "trace.dat"
    path.write_bytes(gzip.compress(data) if change == "gzip" else data)
    assert list(traces.read(path)) == list(traces.read(plain))
