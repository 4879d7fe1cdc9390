"""What commands say if the disk is full: which file, and the cause, in one line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from berth.files import whole_file
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


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write wherever the disk lets it.
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    done = berth("--quiet", *COMPARED.format(folder=tmp_path).split())
    told = f"berth: --out {tmp_path} cannot be written to; name a folder that can be written\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


def test_a_disk_that_is_read_only_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, *, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(OSError, match="Read-only") as caught, whole_file(tmp_path / "page.html") as part:
        refused(part)
    assert caught.value.filename == str(tmp_path / "page.html")
