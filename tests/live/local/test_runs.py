"""One attempt as processes: its files, and who may do what to them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from berth.live.local import runner as of_runner
from berth.live.local.cards import Card
from berth.live.local.entry import Entry
from berth.live.local.request import Request
from berth.live.local.runs import Process, Run
from berth.partition.access import Access


def _run(folder: Path, argv: list[str], **changed: Any) -> Run:
    run = Run(str(folder), "1", 1)
    told: dict[str, Any] = {"cwd": "/", "out": str(folder / "out"), "err": "", "ours": True}
    run.prepare(argv, {"PATH": os.environ["PATH"]}, **(told | changed))
    return run


def test_an_error_file_that_its_user_names_keeps_its_mode(tmp_path: Path) -> None:
    error = tmp_path / "error"
    error.touch()
    error.chmod(0o664)
    (tmp_path / "link").symlink_to(error)
    run = _run(tmp_path, ["sh", "-c", "echo bad >&2"], err=str(tmp_path / "link"))
    os.waitpid(run.spawn(), 0)
    told = run.exit()
    assert told is not None
    assert (told.code, told.reason, error.read_text()) == (0, "", "bad\n")
    assert error.stat().st_mode & 0o777 == 0o664
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


def test_a_script_is_open_to_its_user_alone(tmp_path: Path) -> None:
    run = _run(tmp_path, ["x"], script="#!/bin/sh\n")
    assert Path(run.folder, "script").stat().st_mode & 0o777 == 0o500


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_script_of_another_user_is_theirs(tmp_path: Path) -> None:
    run = _run(tmp_path, ["x"], script="#!/bin/sh\n", user=(65534, 65533))
    found = Path(run.folder, "script").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (65534, 65533, 0o500)


def test_a_session_of_another_process_with_the_number_of_a_job_is_left(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        run = _run(tmp_path, ["x"])
        words = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()
        began = Path(run.folder, "began")
        began.write_text(f"{other.pid} {int(words[19]) - 1} 1\n")
        run.end_orphans()
        time.sleep(0.05)  # a signal that was sent has arrived
        assert Process(other.pid, int(words[19])).alive
        began.write_text(f"{other.pid} {words[19]} 1\n")
        run.end_orphans()
        assert other.wait(30) == -9
    finally:
        other.kill()
        other.wait()


def test_a_lock_that_cannot_be_looked_at_is_no_sign_that_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(tmp_path, ["x"])
    assert not run.shim_lives()

    def full(*args: Any, **named: Any) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="Too many open files"):
        run.shim_lives()


def test_the_partition_of_a_users_job_is_open_to_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Access] = []

    def create(name: str, gpu: object, limit: object, *, access: Access) -> SimpleNamespace:
        given.append(access)
        return SimpleNamespace(folder="")

    monkeypatch.setattr(of_runner, "create", create)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    runner = object.__new__(of_runner.Runner)
    runner._cards, runner._tag = (Card(0, "GPU-a", "A100", 80_000),), "x"
    entry = Entry("1", 1, 65534, "nobody", Request(("true",)), 1, 1, 1, slots=(0,), share=(1000, 0))
    runner._partition(entry)
    assert given == [Access(uid=65534, gid=None)]
    assert given[0].file_mode == 0o600
