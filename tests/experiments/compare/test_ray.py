"""Sweeps on a Ray cluster: the same results, what is lost is named, and wrong addresses are refused at once."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from berth.errors import SettingError
from berth.experiments.compare import compare
from tests.experiments.compare.test_continued import BERTH, POLICIES, TRACE, interrupted


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
    """Without the question that is put first, Ray itself still waits after two minutes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"{scheme}127.0.0.1:{listener.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(SettingError, match=r"no Ray cluster answers at .*timed out"):
            compare(TRACE, "fifo", ray=address)
        assert time.monotonic() - begin < 60  # asked: 10 s, which bench/sweeps.py measures

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


@needs_ray
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_grpc_server_that_is_not_ray_s_is_no_ray_cluster(scheme: str) -> None:
    """Ray itself tries again for half a minute, or for ever."""
    grpc = pytest.importorskip("grpc")
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(SettingError, match="speaks gRPC, but not as Ray does"):
            compare(TRACE, "fifo", ray=f"{scheme}127.0.0.1:{port}")
    finally:
        server.stop(None).wait(60)


@needs_ray
@pytest.mark.slow
def test_ray_gives_what_one_process_gives() -> None:
    command = [str(BERTH), "compare", TRACE, "--policies", ",".join(POLICIES), "--seeds", "2", "--json"]
    here = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400)
    there = subprocess.run(
        [*command, "--ray", "local"], capture_output=True, text=True, check=True, timeout=400
    )
    assert json.loads(there.stdout) == json.loads(here.stdout)


@needs_ray
@pytest.mark.slow
def test_an_interrupted_sweep_on_ray_keeps_its_runs_and_is_continued(tmp_path: Path) -> None:
    command = [str(BERTH), "compare", "synthetic:philly-like?jobs=1000&load=1.3", "--out", str(tmp_path)]
    command += ["--policies", "fifo+first-fit,sjf+best-fit", "--seeds", "12", "--ray", "local", "--json"]
    out, errors, status = interrupted(command, tmp_path)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*.parquet")}
    assert (status, out) == (130, "")
    assert f"{len(kept)} finished runs are in" in errors
    assert 1 <= len(kept) < 24
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400)
    assert len(json.loads(done.stdout)["runs"]) == 24
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def commands() -> dict[int, tuple[int, str]]:
    """Every process: its parent and its command line."""
    found: dict[int, tuple[int, str]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(place.name)] = parent, (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def kill_one(root: int, word: str) -> None:
    """Kill -9 a process below this one whose command has the word, once there is one."""
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        found = commands()
        below = {root}
        while more := {pid for pid, (parent, _) in found.items() if parent in below} - below:
            below |= more
        for pid in below - {root}:
            if word in found[pid][1]:
                os.kill(pid, signal.SIGKILL)
                return
        time.sleep(0.1)
    raise AssertionError(f"no process of '{word}'")


@needs_ray
@pytest.mark.slow
def test_a_sweep_of_which_a_worker_is_killed_says_what_it_ran_and_is_continued(tmp_path: Path) -> None:
    command = [str(BERTH), "compare", "synthetic:philly-like?jobs=600&load=1.3", "--json"]
    command += ["--policies", "fifo+first-fit,sjf+best-fit", "--seeds", "5"]
    on_ray = [*command, "--ray", "local", "--out", str(tmp_path)]
    with subprocess.Popen(on_ray, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sweep:
        give_up = time.monotonic() + 240
        while not list(tmp_path.glob("runs/*.parquet")) and time.monotonic() < give_up:
            time.sleep(0.1)
        kill_one(sweep.pid, "ray::PoolActor")
        out, errors = sweep.communicate(timeout=400)
    assert sweep.returncode == 2, out + errors
    assert re.search(r"the Ray cluster at 'local' lost '(fifo|sjf)\+.*' with seed \d", errors)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*.parquet")}
    done = subprocess.run(on_ray, capture_output=True, text=True, check=True, timeout=400)
    here = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400)
    assert json.loads(done.stdout)["runs"] == json.loads(here.stdout)["runs"]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@needs_ray
@pytest.mark.slow
def test_a_cluster_whose_node_here_was_killed_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself waits a minute and more for such a node."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory(
        dir="/tmp", ignore_cleanup_errors=True
    ) as folder:  # a socket's path is short
        start = [
            BERTH.parent / "ray",
            "start",
            "--head",
            f"--port={port}",
            "--num-cpus=1",
            "--include-dashboard=false",
            f"--temp-dir={folder}",
        ]
        try:
            done = subprocess.run(start, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stdout + done.stderr
            raylets = [
                pid
                for pid, (_, command) in commands().items()
                if "raylet/raylet" in command and folder in command
            ]
            assert raylets
            for pid in raylets:
                os.kill(pid, signal.SIGKILL)
            begin = time.monotonic()
            with pytest.raises(SettingError, match="has no living node on this machine"):
                compare(TRACE, "fifo", ray=f"127.0.0.1:{port}")
            assert time.monotonic() - begin < 60  # asked: 10 s, which bench/sweeps.py measures
        finally:
            for pid, (_, command) in commands().items():
                if folder in command and pid != os.getpid():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
