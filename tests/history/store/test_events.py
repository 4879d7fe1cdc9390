"""The event table, from which anyone can check conservation."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.errors import HistoryError
from berth.gpu_models import gpu_model
from berth.history.store import events as events_module
from berth.history.store.events import SCHEMA, join_events, write_events
from berth.model import NO_GPU, Event, EventKind, GpuSlot, Job, Node, Reason, Share
from tests.examples import examples

NODES = tuple(Node(f"n{index}", 8, gpu_model("V100")) for index in range(4))
GANG = Job("gang", 0, 9, gpus=3, cpu_milli=100, mem_mib=7, nodes=0)
PART = Job("part", 1, 9, share=Share(250, 900), cpu_milli=11, mem_mib=5)
NO_GPUS = Job("cpu", 2, 9, gpus=0, nodes=2, cpu_milli=5, mem_mib=8)


def _event(
    time_ms: int, kind: EventKind, job: Job, *slots: tuple[int, int], reason: Reason = Reason.NONE
) -> Event:
    return Event(time_ms, kind, job, 1, tuple(GpuSlot(*slot) for slot in slots), job.share, reason)


def _rows(path: Path) -> list[tuple[object, ...]]:
    with duckdb.connect() as database:
        return database.execute("SELECT * FROM read_parquet(?)", [str(path)]).fetchall()


def test_each_slot_is_a_row_and_the_node_gives_its_part_in_the_first(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    number = write_events(
        [
            _event(0, EventKind.SUBMIT, GANG),
            _event(1, EventKind.START, GANG, (3, 1), (2, 0), (3, 2)),
            _event(2, EventKind.START, PART, (0, 7)),
            _event(3, EventKind.FAIL, NO_GPUS, (1, NO_GPU), (2, NO_GPU), reason=Reason.NODE_LOST),
            _event(4, EventKind.REJECT, PART, reason=Reason.PATIENCE),
            _event(5, EventKind.CANCEL, PART),
            _event(6, EventKind.CANCEL, PART, (0, 7))._replace(shared=True),
        ],
        NODES,
        path,
    )
    assert number == 7
    assert _rows(path) == [
        (0, "submit", "gang", 1, None, None, 0, 0, 0, 0, "", False),
        (1, "start", "gang", 1, "n3", 1, 1000, 0, 67, 5, "", False),
        (1, "start", "gang", 1, "n2", 0, 1000, 0, 34, 3, "", False),
        (1, "start", "gang", 1, "n3", 2, 1000, 0, 0, 0, "", False),
        (2, "start", "part", 1, "n0", 7, 250, 900, 11, 5, "", False),
        (3, "fail", "cpu", 1, "n1", None, 0, 0, 3, 4, "node-lost", False),
        (3, "fail", "cpu", 1, "n2", None, 0, 0, 3, 4, "node-lost", False),
        (4, "reject", "part", 1, None, None, 0, 0, 0, 0, "patience", False),
        (5, "cancel", "part", 1, None, None, 0, 0, 0, 0, "", False),
        (6, "cancel", "part", 1, "n0", 7, 250, 900, 11, 5, "", True),
    ]


def test_the_schema_is_the_documented_one_even_without_events(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    assert write_events([], NODES, path) == 0
    with duckdb.connect() as database:
        described = database.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(path)]).fetchall()
    assert {column[0]: column[1] for column in described} == SCHEMA


@st.composite
def _starts(draw: st.DrawFn) -> Event:
    gpus = draw(st.integers(1, 12))
    slots = draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), min_size=gpus, max_size=gpus, unique=True)
    )
    job = Job(
        "j", 0, 1, gpus=gpus, cpu_milli=draw(st.integers(0, 10**6)), mem_mib=draw(st.integers(0, 10**6))
    )
    return _event(0, EventKind.START, job, *slots)


@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(starts=st.lists(_starts(), min_size=1, max_size=5))
def test_each_node_gives_its_share_of_the_total_rounded_up(tmp_path: Path, starts: list[Event]) -> None:
    path = tmp_path / "events.parquet"
    write_events(starts, NODES, path)
    rows = iter(_rows(path))
    for start in starts:
        cpu: dict[str, int] = {}
        memory: dict[str, int] = {}
        for _ in start.slots:
            row = next(rows)
            cpu[str(row[4])] = cpu.get(str(row[4]), 0) + int(str(row[8]))
            memory[str(row[4])] = memory.get(str(row[4]), 0) + int(str(row[9]))
        job = start.job
        for node in {slot.node for slot in start.slots}:
            here = sum(slot.node == node for slot in start.slots)
            assert cpu[f"n{node}"] == -(-job.cpu_milli * here // job.gpus)
            assert memory[f"n{node}"] == -(-job.mem_mib * here // job.gpus)


def test_a_long_history_is_written_in_chunks_and_stays_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "_CHUNK_EVENTS", 1000)
    path = tmp_path / "events.parquet"
    number = write_events(
        (_event(time, EventKind.START, PART, (time % 4, 0)) for time in range(4500)), NODES, path
    )
    assert number == 4500
    assert [row[0] for row in _rows(path)] == list(range(4500))
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_nothing_behind_and_the_old_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "_CHUNK_EVENTS", 2)
    path = tmp_path / "events.parquet"
    write_events([_event(0, EventKind.SUBMIT, PART)], NODES, path)
    before = path.read_bytes()

    def broken() -> object:
        yield from [_event(time, EventKind.SUBMIT, PART) for time in range(5)]
        raise RuntimeError("the run broke")

    with pytest.raises(RuntimeError, match="the run broke"):
        write_events(broken(), NODES, path)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])
    with pytest.raises(HistoryError, match="cannot be written"):
        write_events([], NODES, tmp_path / "nowhere" / "events.parquet")


def test_the_events_of_several_runs_make_one_file_with_policy_and_seed(tmp_path: Path) -> None:
    parts = []
    for seed in (1, 2):
        part = tmp_path / f"part-{seed}.parquet"
        write_events([_event(seed, EventKind.SUBMIT, PART)], NODES, part)
        parts.append((part, "it's fifo", seed))
    path = tmp_path / "it's all.parquet"
    join_events(parts, path)
    row = ("submit", "part", 1, None, None, 0, 0, 0, 0, "", False, "it's fifo")
    assert _rows(path) == [(1, *row, 1), (2, *row, 2)]
    assert list(tmp_path.iterdir()) == [path]
