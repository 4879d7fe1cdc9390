"""A history that stays open: it sees each import, remembers until then, and lets go of what was replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from berth.errors import HistoryError
from berth.history.importing.simulated import import_records
from berth.history.store.cached_history import CachedHistory
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import write_records
from berth.model import Record
from berth.statistics.attempts import Picked
from berth.statistics.tables import Tables
from tests.console.histories import records


def add(folder: Path, found: Iterator[Record]) -> None:
    write_records(found, folder / "more.parquet")
    import_records(open_history(folder / "history"), folder / "more.parquet", Options("made"))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[CachedHistory]:
    add(tmp_path, records("ann", "pytorch", range(5)))
    kept = CachedHistory(tmp_path / "history")
    yield kept
    kept.close()


def count(kept: CachedHistory) -> int:
    return kept.remembered(
        "count", lambda db: int(db.execute("SELECT count(*) FROM records").fetchall()[0][0])
    )


def test_an_import_is_seen_and_what_was_remembered_is_forgotten(tmp_path: Path, kept: CachedHistory) -> None:
    assert (count(kept), count(kept)) == (5, 5)
    add(tmp_path, records("bob", "lammps", range(3)))
    assert count(kept) == 8


def test_an_answer_is_worked_out_once(kept: CachedHistory) -> None:
    asked: list[int] = []
    for _ in range(3):
        kept.remembered("once", lambda _: asked.append(1))
    assert asked == [1]


def test_a_question_under_way_keeps_what_an_import_replaces(tmp_path: Path, kept: CachedHistory) -> None:
    with kept.database() as database:
        add(tmp_path, records("bob", "lammps", range(3)))
        assert count(kept) == 8
        assert database.execute("SELECT count(*) FROM records").fetchall() == [(5,)]


def test_many_threads_ask_while_imports_come(tmp_path: Path, kept: CachedHistory) -> None:
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.extend(count(kept) for _ in range(10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for at in range(3):
        add(tmp_path, records(f"u{at}", "vasp", range(2)))
    for thread in threads:
        thread.join()
    assert (len(seen), set(seen) <= {5, 7, 9, 11}, count(kept)) == (40, True, 11)


def test_files_of_other_columns_are_read_as_the_plain_reader_reads_them(
    tmp_path: Path, kept: CachedHistory
) -> None:
    add(tmp_path, records("bob", "lammps", range(3), exit_code=3, label="7_1"))
    with kept.database() as opened, kept.reader.database() as plain:
        asked = "SELECT * FROM records ORDER BY ALL"
        assert opened.execute(asked).fetchall() == plain.execute(asked).fetchall()


def test_without_a_history_it_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="berth import"):
        count(CachedHistory(tmp_path))


def test_a_page_of_attempts_is_a_part_of_all(kept: CachedHistory) -> None:
    with kept.database() as database:
        tables = Tables(database)
        total, every = tables.attempts(Picked("gpu-hours"), 100)
        pages = [tables.attempts(Picked("gpu-hours"), 2, skip)[1] for skip in range(0, 6, 2)]
    assert (total, [each for page in pages for each in page]) == (5, every)


def test_two_threads_that_ask_the_same_at_once_have_it_worked_out_once(kept: CachedHistory) -> None:
    calls: list[int] = []
    twice = threading.Event()

    def answer(_: object) -> int:
        calls.append(1)
        if len(calls) == 2:
            twice.set()
        twice.wait(0.2)
        return 7

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: kept.remembered("slow", answer), range(2)))
    assert (found, calls) == ([7, 7], [1])
