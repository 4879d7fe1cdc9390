"""Which rows are the same job: tasks of arrays, labels and ids, clusters with and without a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from berth.errors import HistoryError
from berth.history.importing.sacct import import_rows, import_text
from berth.history.importing.table_import import csv_rows, header_of, read_map
from berth.history.store.folder import History, open_history
from berth.history.store.import_result import ImportResult, Options, Rejections
from tests.every_policy import some
from tests.history import exports

COLUMNS = read_map("job=id,submit=made,start=began,end=done,node_list=host")
BASE_S = 1_767_225_600


def table(history: History, path: Path, lines: list[str]) -> ImportResult:
    path.write_text("\n".join(["id,made,began,done,host", *lines]) + "\n")
    rejections = Rejections()
    rows = csv_rows(path, COLUMNS, rejections)
    return import_rows(history, rows, header_of(COLUMNS), Options(), str(path), rejections, tasks=True)


def task(job: int, began: int, lasted: int, host: str = "n1") -> str:
    return f"{job},{BASE_S},{BASE_S + began},{BASE_S + began + lasted},{host}"


TASKS = [
    *(task(7, 60 * at, 3600) for at in range(4)),
    task(7, 0, 3600, "n2"),  # at the same time as the first, elsewhere
    task(7, 0, 7200),
    task(8, 0, 3600),
]


def hours(history: History) -> float:
    return sum(r.end_ms - (r.start_ms or r.end_ms) for r in history.records()) / 3_600_000


def test_rows_of_one_id_and_other_times_are_numbered_as_tasks(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    result = table(history, tmp_path / "f", [*TASKS, TASKS[0]])
    assert (result.read, result.imported, result.unchanged, result.numbered) == (8, 7, 1, 5)
    assert sorted(r.job_id for r in history.records()) == ["7", "7_2", "7_3", "7_4", "7_5", "7_6", "8"]
    assert hours(history) == 8
    again = table(history, tmp_path / "f", TASKS)
    assert (again.imported, again.updated, again.unchanged) == (0, 0, 7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    [
        (3, 0, 5, 1, 6, 4, 2),
        (0, 1, 2, 3, 4, 5, 6),
        (6, 5, 4, 3, 2, 1, 0),
    ],
)
def test_tasks_that_come_in_pieces_are_all_there(tmp_path: Path, order: tuple[int, ...]) -> None:
    history = open_history(tmp_path / "h")
    for piece in (order[:1], order[1:3], order[2:5], order[4:], order):
        table(history, tmp_path / "f", [TASKS[at] for at in piece])
    assert (len(history), hours(history)) == (7, 8)


def test_an_end_that_was_put_right_is_no_new_task(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    table(history, tmp_path / "f", [task(7, 0, 3600)])
    result = table(history, tmp_path / "f", [task(7, 0, 1800)])
    assert (result.imported, result.updated, hours(history)) == (0, 1, 0.5)


def test_of_two_other_rows_of_one_attempt_of_slurms_one_is_left_out_with_a_reason(tmp_path: Path) -> None:
    rows = [exports.line(), exports.line(End="2026-01-01T02:10:00"), exports.line()]
    history = open_history(tmp_path / "h")
    result = import_text(history, exports.write(tmp_path / "f", rows), Options())
    assert (result.read, result.imported, result.unchanged, result.rejected_count) == (3, 1, 1, 1)
    assert "another row of the same attempt" in result.rejected[0].why
    assert hours(history) == 2


FULL = exports.HEADER.replace("JobIDRaw|", "JobIDRaw|JobID|", 1)
LABELS = exports.HEADER.replace("JobIDRaw", "JobID", 1)
NAMES = {101: "100_1", 102: "100_2", 100: "100_3", 200: "200+0", 201: "200+1", 300: "300"}


def full(raw: int, label: str) -> str:
    row = exports.line(JobIDRaw=raw)
    return row.replace("|", f"|{label}|", 1)


def with_ids(history: History, path: Path) -> ImportResult:
    rows = [full(raw, label) for raw, label in NAMES.items()]
    return import_text(history, exports.write(path, rows, FULL), Options("c"))


def with_labels(history: History, path: Path) -> ImportResult:
    rows = [exports.line(JobIDRaw=label) for label in NAMES.values()]
    return import_text(history, exports.write(path, rows, LABELS), Options("c"))


@pytest.mark.slow
def test_tasks_told_by_their_label_are_those_told_by_their_id(tmp_path: Path) -> None:
    expected = sorted((str(raw), label if label != str(raw) else "") for raw, label in NAMES.items())
    for first in ("ids", "labels"):
        history = open_history(tmp_path / first)
        for which in (first, "labels", "ids"):
            result = (
                with_ids(history, tmp_path / "f") if which == "ids" else with_labels(history, tmp_path / "f")
            )
            assert len(history) == len(NAMES)
        assert (result.imported, result.updated, result.unchanged) == (0, 0, len(NAMES))
        assert sorted((r.job_id, r.label) for r in history.records()) == expected


@pytest.mark.parametrize("order", some([("", "neuron"), ("neuron", "")]))
def test_jobs_with_a_clusters_name_and_without_are_refused(tmp_path: Path, order: tuple[str, str]) -> None:
    file = exports.write(tmp_path / "f", [exports.line(JobIDRaw=1), exports.line(JobIDRaw=2)])
    history = open_history(tmp_path / "h")
    import_text(history, file, Options(order[0]))
    with pytest.raises(HistoryError, match=r"2 of these jobs are in .* with --cluster neuron"):
        import_text(history, file, Options(order[1]))
    assert len(history) == 2


@pytest.mark.slow
def test_imports_are_taken_back_one_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "h"
    states = []
    for number in range(4):
        rows = [exports.line(JobIDRaw=n, Comment=f"x{number}") for n in range(number + 1)]
        states.append((open_history(folder).index().cursors, list(open_history(folder).records())))
        import_text(
            open_history(folder, importing=f"file {number}"), exports.write(tmp_path / "f", rows), Options()
        )
    for number in (3, 2, 1):
        last = open_history(folder).undo()
        assert (last.what, last.imported, last.updated) == (f"file {number}", 1, number)
        assert list(open_history(folder).records()) == states[number][1]
    with pytest.raises(HistoryError, match="knows of no import to take back"):
        open_history(folder).undo()
    left = {f"records/{path.name}" for path in (folder / "records").iterdir()}
    assert left == set(open_history(folder).index().records)
    assert import_text(open_history(folder), tmp_path / "f", Options()).imported == 3


@pytest.mark.slow
def test_what_comes_in_parts_is_one_import_to_take_back(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h", importing="slurmdbd")
    for number in range(3):
        import_text(history, exports.write(tmp_path / "f", [exports.line(JobIDRaw=number)]), Options())
    assert open_history(tmp_path / "h").undo().imported == 3
    assert len(open_history(tmp_path / "h")) == 0
