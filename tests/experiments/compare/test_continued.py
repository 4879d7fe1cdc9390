"""Sweeps: what is finished is kept, an interruption loses nothing, a second call goes on, and Ray gives the same."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from berth.card_speeds import CardSpeeds
from berth.cluster import Cluster, Queue
from berth.cluster.outages import FailureRate, Recovery
from berth.counts import counted
from berth.errors import PolicyError, SimulationError
from berth.experiments.compare import compare, parallel
from berth.experiments.compare.conditions import Conditions
from berth.experiments.compare.kept import KeptRuns, digest
from berth.experiments.compare.kept_file import KeptFile, write_kept
from berth.experiments.compare.sweep import Task
from berth.interference import make_interference
from berth.model import Outage, Placement, Reservation
from berth.policies.schemes.limits import Limit
from berth.statistics.cost import Prices
from berth.traces import read_trace
from tests.experiments.compare.held import HELD, holding
from tests.policies.schemes.limit_files import write_limits

BERTH = Path(sys.executable).parent / "berth"
TRACE = "synthetic:demo?jobs=60"
POLICIES = ["fifo+first-fit", "sjf+best-fit", "random"]


def test_a_kept_run_is_the_run(tmp_path: Path) -> None:
    first = compare(TRACE, POLICIES, seeds=2, keep=tmp_path)
    again = compare(TRACE, POLICIES, seeds=2, keep=tmp_path)
    assert again.to_dict() == first.to_dict()
    for one, other in zip(first.runs, again.runs, strict=True):
        assert one.timeline.waiting_mean.tolist() == other.timeline.waiting_mean.tolist()
        assert one.film is not None
        assert other.film is not None
        assert one.film.held_milli.tolist() == other.film.held_milli.tolist()


def test_duckdb_reads_the_runs_as_one_dataset(tmp_path: Path) -> None:
    result = compare(TRACE, POLICIES, seeds=2, keep=tmp_path)
    rows = duckdb.sql(
        f"SELECT policy, seed, finished, waiting_time_s_mean FROM '{tmp_path}/runs/*.parquet' ORDER BY ALL"
    ).fetchall()
    assert rows == sorted(
        (run.policy, run.seed, run.summary.finished, run.summary.waiting_time_s.mean) for run in result.runs
    )


def test_only_what_is_missing_or_under_other_conditions_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, int]] = []
    original = parallel.run_task

    def counted(task: Task, *rest: object) -> object:
        ran.append((task.policy, task.seed))
        return original(task, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(parallel, "run_task", counted)
    compare(TRACE, POLICIES[:2], keep=tmp_path)
    compare(TRACE, POLICIES, seeds=2, keep=tmp_path)
    assert ran == [
        ("fifo+first-fit", 0),
        ("sjf+best-fit", 0),
        ("random", 0),
        *((name, 1) for name in POLICIES),
    ]
    ran.clear()
    compare(TRACE, POLICIES[:1], compress=2, keep=tmp_path)
    compare(TRACE, POLICIES[:1], compress=2, recovery=Recovery(1000), keep=tmp_path)
    assert len(ran) == 2
    (tmp_path / "runs" / next((tmp_path / "runs").iterdir()).name).write_bytes(b"damaged")
    compare(TRACE, POLICIES, seeds=2, keep=tmp_path)
    assert len(ran) > 2


def test_the_digest_tells_conditions_and_files_apart(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("id,submit_ms,work_ms\na,0,1\n")
    task = Task(read_trace(path), (), "fifo", 0)
    before = digest(task)
    path.write_text("id,submit_ms,work_ms\na,0,12\n")
    assert digest(task) != before
    assert KeptRuns(tmp_path).load(task) is None


def test_the_digest_tells_apart_how_a_trace_is_read(tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text("name,at,short,long,count\na,0,60,600,1\n", encoding="utf-8")
    maps = [f"id=name,submit=at,run={column},gpus=count" for column in ("short", "long")]
    assert len({digest(Task(read_trace(str(table), columns=each), (), "fifo", 0)) for each in maps}) == 2


CHANGED = {
    "compress": 2.0,
    "skip_bad": True,
    "interference": make_interference("mps"),
    "outages": (Outage(0, 1),),
    "failures": FailureRate(1000, 10),
    "recovery": Recovery(1000),
    "quotas": (("", 3),),
    "limits": (Limit("user", running=1),),
    "borrow": True,
    "round_ms": 1000,
    "knowledge": "user",
    "speeds": CardSpeeds({"": {"T4": 500}}),
    "prices": Prices("EUR", {"t4": 1.0}),
    "reservations": (Reservation((0,), ("ann",), 0, 1000),),
    "when_full": "grow",
}


def test_the_digest_tells_every_condition_apart_but_what_the_interference_is_called() -> None:
    plain = Task(read_trace(TRACE), (), "fifo", 0)
    others = [replace(plain, conditions=replace(Conditions(), **{name: CHANGED[name]})) for name in CHANGED]  # type: ignore[arg-type]
    assert {field.name for field in fields(Conditions)} == {*CHANGED, "interference_name"}
    assert len({digest(task) for task in [plain, *others]}) == 1 + len(CHANGED)
    assert digest(replace(plain, conditions=Conditions(interference_name="none"))) == digest(plain)


@pytest.mark.parametrize("policy", ["limits?file={}+fifo", "limits?user_running=1&file={}+easy+sjf+best-fit"])
def test_a_run_is_not_kept_for_a_policy_whose_settings_file_has_changed(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "limits.json"
    name = policy.format(path)
    task = Task(read_trace(TRACE), (), name, 0)
    write_limits(path, Limit("user", running=1))
    narrow, before = compare(TRACE, [name], keep=tmp_path), digest(task)
    write_limits(path, Limit("user", running=10))
    assert digest(task) != before
    fresh = compare(TRACE, [name])
    assert compare(TRACE, [name], keep=tmp_path).to_dict() == fresh.to_dict()
    if "user_running" not in name:
        assert fresh.to_dict() != narrow.to_dict()


@pytest.mark.slow
def test_an_interrupted_sweep_is_continued(tmp_path: Path) -> None:
    command = [str(BERTH), "compare", TRACE, "--policies", f"fifo+first-fit,{HELD}", "--seeds", "4"]
    command += ["--jobs", "2", "--out", str(tmp_path), "--json"]
    is_continued(command, tmp_path)


Ended = tuple[str, str, int]
"""Output, errors and status of a command."""


def ended(command: list[str], environment: dict[str, str] | None = None) -> Ended:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=400)
    return done.stdout, done.stderr, done.returncode


def is_continued(
    command: list[str], folder: Path, once: Callable[[Callable[[], Ended]], Ended] = lambda run: run()
) -> None:
    """A sweep of 8 runs, of which 4 are held, is interrupted; says what is done, and does not do it again."""
    hold = folder / "hold"
    hold.mkdir()
    out, errors, status = once(lambda: interrupted(command, folder, holding(hold)))
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*.parquet")}
    assert (status, out) == (130, ""), errors
    assert f"{counted(len(kept), 'finished run is', 'finished runs are')} in" in errors
    assert 1 <= len(kept) <= 4
    shutil.rmtree(hold)
    out, errors, status = once(lambda: ended(command, holding(hold)))
    assert status == 0, errors
    assert len(json.loads(out)["runs"]) == 8
    assert len(list(folder.glob("runs/*.parquet"))) == 8
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True])
def test_a_sweep_that_is_interrupted_at_any_moment_ends_with_its_runs_kept(
    group: bool, tmp_path: Path
) -> None:
    """Small runs and many, so that a worker is often ended while it sends a result or one is being written."""
    draw = random.Random(group)
    quiet = {**os.environ, "BERTH_QUIET": "1"}
    command = [str(BERTH), "compare", TRACE, "--policies", "fifo+first-fit,sjf+best-fit", "--seeds", "2000"]
    for number in range(3):
        folder = tmp_path / str(number)
        out, errors, status = interrupted(
            [*command, "--jobs", "2", "--out", str(folder)], folder, quiet, draw.random(), group
        )
        kept = len(list(folder.glob("runs/*.parquet")))
        runs = counted(kept, "finished run is", "finished runs are")
        told = f"berth: {runs} in {folder / 'runs'}; the same command continues from there"
        assert (status, out, errors.splitlines()) == (130, "", [told, "berth: interrupted"])
        assert not list(folder.glob("runs/*.part"))


def test_an_interruption_waits_until_the_curves_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of it, NumPy's archive ends in a ValueError that hides the interruption."""
    pack, packed = np.savez_compressed, []

    def pack_interrupted(stream: BytesIO, **arrays: Any) -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        pack(stream, **arrays)
        packed.append(stream)

    monkeypatch.setattr(np, "savez_compressed", pack_interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_kept(tmp_path / "run.parquet", KeptFile("fifo", 0, TRACE, "", {}, {"wait": np.zeros(3)}, ()))
    assert packed


def test_a_semaphore_that_an_interruption_left_is_no_warning() -> None:
    """It may come between loky's removal of a semaphore and its word of it to the process that tracks them."""
    command = ["berth", "compare", TRACE, "--policies", "fifo+first-fit,random", "--jobs", "2", "--json"]
    code = f"""
import sys
from contextlib import suppress
from berth.cli import main
sys.argv = {command!r}
with suppress(SystemExit):
    main()
from joblib.externals.loky.backend import resource_tracker
resource_tracker.register("/loky-left-behind", "semlock")
"""
    out, errors, status = ended([sys.executable, "-c", code], {**os.environ, "BERTH_QUIET": "1"})
    assert (json.loads(out)["runs"] != [], errors, status) == (True, "", 0)


def interrupted(
    command: list[str],
    folder: Path,
    environment: dict[str, str] | None = None,
    after_s: float = 0,
    group: bool = False,
) -> Ended:
    """Output, errors and status of a command that is interrupted so long after its first run was kept.

    With `group` every process of it is told, as by a terminal.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    give_up = time.monotonic() + 240
    while not list(folder.glob("runs/*.parquet")) and process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.05)
    time.sleep(after_s)
    if group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=240)
    return out, errors, process.returncode


@pytest.mark.slow
def test_what_fails_in_a_process_is_told_by_the_one_that_asked() -> None:
    with pytest.raises(PolicyError, match="the policy fails: ZeroDivisionError"):
        compare(TRACE, [f"{__name__}:fails", "random"], seeds=2, processes=2)
    with pytest.raises(
        SimulationError, match=f"a process of the sweep died, which ran .*'{__name__}:dies' with seed"
    ):
        compare(TRACE, [f"{__name__}:dies", "random"], seeds=2, processes=2)


def fails(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
    yield 1 // 0  # type: ignore[misc]


def dies(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
    os._exit(1)


def test_an_interruption_of_what_fails_is_heard_all_the_same() -> None:
    """In a process of its own, for it gets a real SIGINT."""
    code = """
import os, signal
from berth.experiments.compare.interruption import interruption_put_off
try:
    with interruption_put_off():
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError("fails")
except KeyboardInterrupt as interruption:
    print("interrupted after", repr(interruption.__context__))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("interrupted after ValueError('fails')\n", "")
