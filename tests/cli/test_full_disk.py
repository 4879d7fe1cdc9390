"""What commands say if the disk is full: which file, and the cause, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_commands import berth

RUN = "simulate synthetic:demo?jobs=5 --policy fifo"
COMPARED = "compare synthetic:demo?jobs=5 --policies fifo --seeds 1 --out {folder}"


@pytest.mark.parametrize(
    ("words", "name", "told"),
    [
        (COMPARED, "result.json", "{file}: No space left on device"),
        (RUN + " --records {file}", "records.parquet", "{file} cannot be written: No space left on device"),
        ("trace convert synthetic:demo?jobs=5 {file}", "jobs.csv", "{file}: No space left on device"),
    ],
)
def test_a_full_disk_names_the_file(tmp_path: Path, words: str, name: str, told: str) -> None:
    file = tmp_path / name
    unfinished = tmp_path / f"{name}.part"
    unfinished.symlink_to("/dev/full")  # what is written there meets the kernel's own ENOSPC
    done = berth("--quiet", *words.format(file=file, folder=tmp_path).split())
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"berth: {told.format(file=file)}")
    assert not file.exists()
    assert not unfinished.is_symlink()
