"""One attempt as processes: its files, and who may do what to them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from berth.live.local import runner as of_runner
from berth.live.local.cards import Card
from berth.live.local.entry import RUNNING, SUSPENDING, Entry
from berth.live.local.request import Request
from berth.live.local.runs import Process, Run
from berth.partition.regions import Access


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end, f"it never came true that {what}"
        time.sleep(0.01)


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


def test_a_time_limit_holds_without_a_broker_also_one_that_comes_later(tmp_path: Path) -> None:
    run = _run(tmp_path, ["sh", "-c", "trap '' TERM; echo on; while :; do sleep 0.1; done"])
    shim = run.spawn()
    until(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_text() == "on\n", "it runs")
    assert not run.expired
    run.limit(1, 1)
    until(lambda: os.waitpid(shim, os.WNOHANG)[0] == shim, "its shim ends it")
    told = run.exit()
    assert told is not None
    assert (told.code, told.signal, run.expired) == (137, 9, True)


def test_a_job_that_ends_in_its_grace_is_not_killed(tmp_path: Path) -> None:
    script = "trap 'echo saved; exit 3' TERM; echo on; while :; do sleep 0.1; done"
    run = _run(tmp_path, ["sh", "-c", script])
    shim = run.spawn()
    until(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_text() == "on\n", "it runs")
    run.limit(1, 600_000)
    until(lambda: os.waitpid(shim, os.WNOHANG)[0] == shim, "its shim ends it")
    told = run.exit()
    assert told is not None
    assert (told.code, told.signal) == (3, 0)
    assert (tmp_path / "out").read_text().endswith("saved\n")


def test_one_process_alone_sends_the_signal_of_the_time_limit(tmp_path: Path) -> None:
    run = _run(tmp_path, ["x"])
    assert (run.expire(), run.expire(), run.expired) == (True, False, True)


def test_the_shim_is_told_no_time_limit_while_the_job_is_suspended(tmp_path: Path) -> None:
    limit = Path(_run(tmp_path, ["x"]).folder, "limit")
    runner = object.__new__(of_runner.Runner)
    runner._places, runner._limits = SimpleNamespace(runs=str(tmp_path)), {}  # type: ignore[assignment]
    runner._unlimited = set()
    request = Request(("true",), time_limit_ms=5000)
    entry = Entry("1", 1, 0, "root", request, 1, 1, 1, state=RUNNING, start=1)
    runner.keep_limit(entry)
    assert limit.read_text() == "5000 10000\n"
    entry.suspension = SUSPENDING
    runner.keep_limit(entry)
    assert not limit.exists()
    entry.suspension, entry.suspended_ms = "", 60_000
    runner.keep_limit(entry)
    assert limit.read_text() == "65000 10000\n"


def test_a_time_limit_that_cannot_be_written_leaves_no_shorter_one_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(tmp_path, ["x"])
    run.limit(1000, 1)
    said: list[str] = []
    runner = object.__new__(of_runner.Runner)
    runner._places, runner._limits = SimpleNamespace(runs=str(tmp_path)), {}  # type: ignore[assignment]
    runner._unlimited = set()
    runner._log = lambda event, **fields: said.append(event)
    entry = Entry("1", 1, 0, "root", Request(("true",), time_limit_ms=5000), 1, 1, 1, start=1)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        runner.keep_limit(entry)
        runner.keep_limit(entry)
    assert (said, Path(run.folder, "limit").exists()) == (["limit-not-kept"], False)
    runner.keep_limit(entry)
    assert Path(run.folder, "limit").read_text() == "5000 10000\n"


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
        assert other.wait(300) == -9
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
