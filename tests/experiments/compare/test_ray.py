"""Sweeps on a Ray cluster: the same results, what is lost is named, and wrong addresses are refused at once."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from berth.errors import SettingError
from berth.experiments.compare import compare
from tests.experiments.compare.held import HELD, holding
from tests.experiments.compare.test_continued import BERTH, POLICIES, TRACE, Ended, ended, is_continued


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere.invalid:6379"])
def test_a_ray_address_that_does_not_answer_is_told(address: str) -> None:
    with pytest.raises(SettingError, match="no Ray cluster answers at"):
        compare(TRACE, "fifo", ray=address)
    with pytest.raises(SettingError, match="is no address of a Ray cluster"):
        compare(TRACE, "fifo", ray="here")


def test_events_of_runs_on_other_machines_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="on a Ray cluster may be another machine"):
        compare(TRACE, "fifo", ray="127.0.0.1:1", events=tmp_path / "events.parquet")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_port_that_opens_and_stays_silent_or_speaks_something_else_is_no_ray_cluster(scheme: str) -> None:
    """Without the question that is put first, Ray itself still waits after two minutes (bench/sweeps.py)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"{scheme}127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(SettingError, match=r"no Ray cluster answers at .*timed out"):
            compare(TRACE, "fifo", ray=address)

        def answer() -> None:
            listener.accept()[0].close()  # the one that gave up
            connection, _ = listener.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        with ThreadPoolExecutor(1) as speaker:
            speaker.submit(answer)
            with pytest.raises(SettingError, match=r"says b'HTTP/1.1 400 Bad Req.*, which is not gRPC"):
                compare(TRACE, "fifo", ray=address)


needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed; the extra `ray` brings it"
)


@pytest.fixture
def rays_turn() -> Iterator[None]:
    """Waits until no other test of this machine starts a Ray: it gives its processes 15 s, and then gives up."""
    with Path("/tmp/berth-test-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def once_ray_starts(run: Callable[[], Ended]) -> Ended:
    """What comes of a command on a Ray of its own; it runs again if Ray says that it could not start.

    Ray's limits are fixed, and shorter than its programs need on a busy machine (its issue 65983).
    """
    for _ in range(6):
        out, errors, status = run()
        if status == 0 or "timed out during startup" not in errors:
            return out, errors, status
    pytest.skip("Ray could not start here within its limits, six times")


def runs_of(command: list[str], environment: dict[str, str] | None = None) -> Any:
    """The runs of a sweep."""
    out, errors, status = once_ray_starts(lambda: ended(command, environment))
    assert status == 0, errors
    return json.loads(out)["runs"]


@needs_ray
@pytest.mark.slow
@pytest.mark.usefixtures("rays_turn")
def test_ray_gives_what_one_process_gives() -> None:
    command = [str(BERTH), "compare", TRACE, "--policies", ",".join(POLICIES), "--seeds", "2", "--json"]
    assert runs_of([*command, "--ray", "local"]) == runs_of(command)


@needs_ray
@pytest.mark.slow
@pytest.mark.usefixtures("rays_turn")
def test_an_interrupted_sweep_on_ray_keeps_its_runs_and_is_continued(tmp_path: Path) -> None:
    command = [str(BERTH), "compare", TRACE, "--policies", f"fifo+first-fit,{HELD}", "--seeds", "4"]
    is_continued([*command, "--ray", "local", "--out", str(tmp_path), "--json"], tmp_path, once_ray_starts)


@needs_ray
@pytest.mark.slow
@pytest.mark.usefixtures("rays_turn")
def test_a_sweep_of_which_a_worker_is_killed_says_what_it_ran_and_is_continued(tmp_path: Path) -> None:
    command = [str(BERTH), "compare", TRACE, "--policies", f"fifo+first-fit,{HELD}", "--seeds", "3", "--json"]
    on_ray = [*command, "--ray", "local", "--out", str(tmp_path)]
    hold = tmp_path / "hold"
    hold.mkdir()

    def killed() -> Ended:
        """A process of the sweep that is in a run is killed, once a run is kept."""
        with subprocess.Popen(
            on_ray, env=holding(hold), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as sweep:
            give_up = time.monotonic() + 240
            while sweep.poll() is None and time.monotonic() < give_up:
                time.sleep(0.05)
                if list(tmp_path.glob("runs/*.parquet")) and (
                    workers := [int(each.name) for each in hold.iterdir()]
                ):
                    os.kill(workers[0], signal.SIGKILL)
                    break
            out, errors = sweep.communicate(timeout=400)
        return out, errors, sweep.returncode

    out, errors, status = once_ray_starts(killed)
    assert (status, out) == (2, ""), errors
    assert re.search(rf"the Ray cluster at 'local' lost .*'{HELD}' with seed \d", errors)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*.parquet")}
    shutil.rmtree(hold)
    assert runs_of(on_ray, holding(hold)) == runs_of(command, holding(hold))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
