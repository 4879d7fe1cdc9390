"""Jobs that are kept as columns are those that the readers give one by one."""

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from berth.errors import SettingError, TraceError
from berth.model import Job, Share
from berth.traces import read_trace, write
from berth.traces.job_table import FromFields, JobTable, columns_of, compressed, numbers_of, values_of


def test_a_table_has_the_jobs_that_reading_one_by_one_gives(tmp_path: Path) -> None:
    jobs = [
        Job(
            f"j{at}",
            1000 - at // 2,
            at,
            user="ab"[at % 2],
            gpus=at % 3,
            share=Share(1000 - at % 2 * 500, at % 2),
        )
        for at in range(50)
    ]
    write(jobs, tmp_path / "jobs.csv")
    trace = read_trace(tmp_path / "jobs.csv")
    table = trace.table(nodes=())
    assert (list(table), len(table), table[3], list(table[4:6])) == (
        (found := list(trace.jobs(nodes=()))),
        50,
        found[3],
        found[4:6],
    )
    assert [job.submit_ms for job in trace.table(nodes=(), compress=2)] == [
        job.submit_ms // 2 for job in found
    ]


def test_jobs_are_made_anew_and_changed_ones_leave_the_table_as_it_is(tmp_path: Path) -> None:
    write([Job("a", 0, 1)], tmp_path / "jobs.csv")
    table = read_trace(tmp_path / "jobs.csv").table(nodes=())
    assert isinstance(table, JobTable)
    keeping = table.each(lambda job: replace(job, keeps_work=True))
    assert ([job.keeps_work for job in keeping], [job.keeps_work for job in table]) == ([True], [False])


@pytest.mark.parametrize(
    ("row", "line"), [("a,5,1", 4), ("c,x,1", 4), (",5,1", 4), ("c,-1,1", 4), ("c,5", 4), ("c,5,", 4)]
)
def test_a_bad_row_is_told_with_its_line_and_left_out(tmp_path: Path, row: str, line: int) -> None:
    (tmp_path / "jobs.csv").write_text(
        f"id,submit_ms,work_ms\na,0,1\nb,1,1\n{row}\nd,9,1\n", encoding="utf-8"
    )
    trace = read_trace(tmp_path / "jobs.csv")
    with pytest.raises(TraceError, match=f"line {line}|:{line}"):
        trace.table(nodes=())
    bad: list[TraceError] = []
    assert [job.id for job in trace.table(nodes=(), skip_bad=bad)] == ["a", "b", "d"]
    assert [error.line for error in bad] == [line]


def test_values_that_are_no_whole_numbers_stay_as_they_are_and_rows_are_sorted_as_they_came() -> None:
    columns = columns_of([[(2, 1), (True, False), (2**70, 1)], [(2,), (None,), ("x",)]])
    assert [list(column) for column in columns] == [[1, 2, 2], [False, True, None], [1, 2**70, "x"]]
    assert columns_of([]) == []


def test_jobs_as_numbers_are_those_of_their_list_and_are_alike_within_a_kind(tmp_path: Path) -> None:
    jobs = [
        Job(
            f"j{at}",
            at,
            at * 3,
            user=f"u{at}",
            gpus=1 + at % 2,
            retries=at // 4,
            time_limit_ms=None if at % 3 else at,
            estimate_ms=7 if at == 5 else None,
        )
        for at in range(12)
    ]
    write(jobs, tmp_path / "jobs.csv")
    table = read_trace(tmp_path / "jobs.csv").table(nodes=())
    for kept in (table, jobs, read_trace(tmp_path / "jobs.csv").table(nodes=()).each(lambda job: job)):
        found = numbers_of(kept)
        assert found.submit_ms.tolist() == [job.submit_ms for job in jobs]
        assert found.work_ms.tolist() == [job.work_ms for job in jobs]
        assert found.time_limit_ms.tolist() == [
            -1 if job.time_limit_ms is None else job.time_limit_ms for job in jobs
        ]
        assert (found.patience_ms.tolist(), found.estimate_ms.tolist()) == ([], [-1] * 5 + [7] + [-1] * 6)
        assert found.kind_rows.tolist() == [0, 1, 4, 5, 8, 9]
        assert found.kind.tolist() == [2 * (at // 4) + at % 2 for at in range(12)]
        assert list(values_of(kept, "user")) == [job.user for job in jobs]
    assert numbers_of(()).kind_rows.tolist() == []
    with pytest.raises(TypeError, match="whole numbers"):
        numbers_of([Job("live", 0, None)])


def test_numbers_are_those_that_a_run_takes_one_by_one() -> None:
    with pytest.raises(ValueError, match="from 0 on"):
        numbers_of([Job("a", 0, 1, time_limit_ms=-1), Job("b", 0, 1)])
    table = JobTable(
        [array("q", [0]), ["a"], array("q", [-1])], FromFields(("submit_ms", "id", "patience_ms"))
    )
    with pytest.raises(TypeError, match="whole numbers"):  # its work
        numbers_of(table)
    with pytest.raises(TypeError, match="whole numbers"):
        numbers_of([Job("a", np.int64(5), 1)])  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [1e-320, 1e-300, 1e-16])
def test_arrivals_are_compressed_by_no_factor_that_puts_them_beyond_all_times(factor: float) -> None:
    table = JobTable([array("q", [5, 2000]), ["a", "b"]], FromFields(("submit_ms", "id"), work_ms=1))
    for jobs in (table, list(table)):
        with pytest.raises(SettingError, match=r"the last job at .* ms; expected a factor above 1.73e-15"):
            compressed(jobs, factor)
        assert [job.submit_ms for job in compressed(jobs, 3)] == [1, 666]
        assert [job.submit_ms for job in compressed(jobs, 1e-14)] == [5 * 10**14, 2 * 10**17]
