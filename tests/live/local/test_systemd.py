"""What systemd and the kernel's cgroups do for the queue, where this machine has them."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from berth.live.local.boot import Systemd
from berth.live.local.cgroups import Cgroups, _own_group
from tests.live.local.world import World


def test_the_broker_tells_systemd_that_it_serves_and_that_it_stops() -> None:
    world = World(gpus="")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        path = world.folder / "notify"
        listener.bind(str(path))
        listener.settimeout(300)
        world.environment["NOTIFY_SOCKET"] = str(path)
        world.up(wait=False, ready=False)
        assert listener.recv(100) == b"READY=1\nSTATUS=serving"
        assert world.broker is not None
        world.broker.send_signal(signal.SIGTERM)
        assert listener.recv(100) == b"STOPPING=1"
        assert world.broker.wait(300) == 0
    finally:
        listener.close()
        world.close()


@pytest.mark.parametrize("group", ["", "berth-broker"])
def test_memory_is_limited_where_the_broker_has_a_group_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    """The kernel's part in a few lines: a group with processes of its own takes no controller for those below it."""
    make, remove, control = os.mkdir, os.rmdir, "cgroup.subtree_control"

    def mkdir(path: str, mode: int = 0o777) -> None:
        make(path, mode)
        for name in ("cgroup.procs", "cgroup.kill"):
            (Path(path) / name).touch()
        above = Path(path).parent / control
        if above.is_file() and above.read_text() == "+memory":
            (Path(path) / "memory.max").touch()
            (Path(path) / control).touch()
        else:
            make(str(Path(path) / control))  # no controller can be written into it

    def rmdir(path: str) -> None:
        for each in Path(path).iterdir():
            remove(each) if each.is_dir() else each.unlink()
        remove(path)

    unit = tmp_path / "unit"
    unit.mkdir()
    own = unit / group
    own.mkdir(exist_ok=True)
    if own == unit:
        (unit / control).mkdir()
    else:
        (unit / control).touch()
    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(os, "rmdir", rmdir)
    groups = Cgroups("x", str(own))
    assert (groups.folder, groups.limits_memory) == (str(unit / "berth-x"), bool(group))
    groups.make("1-1", 5)
    limit = unit / "berth-x" / "1-1" / "memory.max"
    assert (limit.read_text() if group else "") == (str(5 << 20) if group else "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    (tmp_path / "berth-queue.service").write_text(Systemd().text(["--cpus", "4"], linger=False))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(tmp_path / "berth-queue.service")],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_what_has_left_a_jobs_processes_is_still_in_its_group_and_ends_with_it() -> None:
    groups = Cgroups(f"test-{os.getpid()}")
    if not groups.folder:
        pytest.skip("no cgroup of version 2 is delegated to this process")
    try:
        entry = groups.make("1-1", 0)
        script = f"echo $$ > {entry}; setsid sleep 600 >/dev/null 2>&1 & echo $!"
        daemon = int(subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout)
        groups.sweep({"1-1"})
        assert _runs(daemon)
        groups.sweep(set())
        end = time.monotonic() + 300
        while Path(entry).parent.exists():
            assert time.monotonic() < end
            groups.sweep(set())
        assert not _runs(daemon)
    finally:
        groups.close()
    assert not Path(groups.folder).exists()


@pytest.mark.skipif(not _own_group(), reason="there is no cgroup of version 2")
def test_a_queue_that_goes_down_leaves_no_group_behind() -> None:
    world = World(gpus="")
    try:
        world.up()
        folder = Path(_own_group(), f"berth-{hashlib.sha256(world.places.folder.encode()).hexdigest()[:6]}")
        status = world.status()
        assert status is not None
        assert folder.exists() == status["cgroups"]
        world.wait(world.submit("true", gpus=0))
        world.ask("down")
        assert world.broker is not None
        assert world.broker.wait(300) == 0
        assert not folder.exists()
    finally:
        world.close()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
