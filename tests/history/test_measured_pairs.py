"""Speeds beside each other are those of the runs of a history, and only of runs whose neighbours are known."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from berth.errors import HistoryError
from berth.history.importing.simulated import import_records
from berth.history.jobs.measured_pairs import Speeds, measured_speeds, write_measurements
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import write_records
from berth.model import GpuModel, Profile, Record, RecordState, Share
from berth.profiles import IN_HISTORY, begun, keep_profile
from tests.history.importing.test_mistakes import berth


def run(application: str, start_s: int, run_s: int, slot: str = "n:0", *more: str, **changed: str) -> Record:
    """A run on GPUs; `state` may be another than completed."""
    state = RecordState(changed.get("state", "completed"))
    return Record(
        f"{application}-{start_s}-{slot}", 1, "user", application, "", start_s * 1000, start_s * 1000,
        start_s * 1000, (start_s + run_s) * 1000, state, 1 + len(more), Share(300, 1000), 0, 0, ("n",), "A100-80",
        None, gpu_slots=(slot, *more),
    )  # fmt: skip


def profile(name: str) -> Profile:
    usage = np.tile([0.6, 0.25, 0.4, 0.0], (10, 1))
    return Profile(name, "live", 0, "", GpuModel("A100-80", mem_mib=81920), 1000, usage, "sm-activity")


def test_speeds_are_run_times_alone_by_run_times_beside() -> None:
    pairs = [
        *(run("a", 1000 * at, 100) for at in range(3)),
        *(run("b", 10_000 + 1000 * at, 200) for at in range(3)),
        *(run("a", 20_000 + 1000 * at, 125) for at in range(3)),
        *(run("b", 20_000 + 1000 * at, 125) for at in range(3)),
    ]
    assert measured_speeds(pairs) == {("a", "b"): 0.8, ("b", "a"): 1.0}  # no speed is above that alone


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda each: run("b", 20_000, 125, state="failed"),
        lambda each: run("b", 20_000, 125, "n:0", "n:1"),
        lambda each: run("b", 20_000, 60),  # it left half way
        lambda each: run("b", 20_000, 125, "other:0"),
    ],
    ids=["failed", "two GPUs", "half", "another GPU"],
)
def test_a_pair_of_too_few_runs_is_not_told(spoiled: object) -> None:
    assert callable(spoiled)
    pairs = [
        *(run("a", 1000 * at, 100) for at in range(3)),
        *(run("b", 10_000 + 1000 * at, 100) for at in range(3)),
        *(run("a", 20_000 + 1000 * at, 125) for at in range(3)),
        spoiled(None),
        *(run("b", 20_000 + 1000 * at, 125) for at in (1, 2)),
    ]
    assert measured_speeds(pairs) == {}


def test_a_third_job_spoils_a_run() -> None:
    pairs = [
        *(run("a", 1000 * at, 100) for at in range(3)),
        *(run("a", 20_000 + 1000 * at, 125) for at in range(3)),
        *(run("a", 20_000 + 1000 * at, 125, "n:0") for at in range(3)),
    ]
    assert measured_speeds(pairs) == {("a", "a"): 0.8}
    third = [run("c", 20_000 + 1000 * at, 125) for at in range(3)]
    assert measured_speeds([*pairs, *third]) == {}


def test_the_files_have_the_columns_that_a_fit_reads(tmp_path: Path) -> None:
    speeds: Speeds = {("a", "b"): 0.8, ("b", "a"): 0.9, ("a", "a"): 0.7, ("x", "y"): 0.5, ("y", "x"): 0.5}
    alone, pairs = tmp_path / "single.csv", tmp_path / "pairs.csv"
    profiles = {name: profile(name) for name in ("a", "b", "x")}
    assert write_measurements(speeds, profiles, alone, pairs) == 2
    assert [*csv.reader(alone.read_text().splitlines())] == [
        ["model", "dataset", "batchsize", "amp", "gpu_util", "gmem_util", "gmem"],
        *([name, "", "", "", "60.0", "40.0", "20480"] for name in ("a", "b")),
    ]
    assert [*csv.reader(pairs.read_text().splitlines())] == [
        [
            f"{column}{side}"
            for side in (1, 2)
            for column in ("model", "dataset", "batchsize", "amp", "speed")
        ],
        ["a", "", "", "", "0.7", "a", "", "", "", "0.7"],
        ["a", "", "", "", "0.8", "b", "", "", "", "0.9"],
    ]
    with pytest.raises(HistoryError, match="no two applications have profiles"):
        write_measurements(speeds, {}, alone, pairs)


def test_the_command_writes_what_the_runs_of_a_history_tell(tmp_path: Path) -> None:
    history, folder = tmp_path / "h", tmp_path / "out"
    folder.mkdir()
    found = [
        *(run(name, 1000 * at + add, 100) for name, add in (("a", 0), ("b", 500)) for at in range(3)),
        *(run(name, 20_000 + 1000 * at, 125) for name in ("a", "b") for at in range(3)),
    ]
    write_records(found, tmp_path / "r.parquet")
    import_records(open_history(history, importing="r"), tmp_path / "r.parquet", Options(cluster="here"))
    words = [
        "history",
        "speeds",
        "--history",
        history,
        "--alone",
        folder / "s.csv",
        "--pairs",
        folder / "p.csv",
    ]
    status, _, errors = berth(*words)
    assert (status, "profiles are all that 1 pair lacked" in errors) == (2, True)
    for name in ("a", "b"):
        keep_profile(begun(profile(name), 3000), history / IN_HISTORY)
    status, _, errors = berth(*words)
    assert (status, "profiles are all that 1 pair lacked" in errors) == (2, True)  # beginnings do not count
    for name in ("a", "b"):
        keep_profile(profile(name), history / IN_HISTORY)
    status, output, _ = berth(*words)
    assert (status, output) == (0, f"wrote 1 pair to {folder / 'p.csv'}\n")
    assert (folder / "p.csv").read_text().splitlines()[1] == "a,,,,0.8,b,,,,0.8"
