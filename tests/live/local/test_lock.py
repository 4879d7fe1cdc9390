"""The lock of the store, after a broker was killed while it started a process."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from berth.live.local.__main__ import hold_lock
from berth.live.local.places import Places


def test_a_lock_that_a_dead_brokers_child_still_has_is_waited_for(tmp_path: Path) -> None:
    places = Places(str(tmp_path))
    Path(places.socket).touch()
    gone = subprocess.Popen(["true"])
    gone.wait()
    lock = os.open(places.lock, os.O_RDWR | os.O_CREAT)
    os.write(lock, f"{gone.pid}\n".encode())
    fcntl.flock(lock, fcntl.LOCK_EX)
    with subprocess.Popen(["sleep", "0.3"], pass_fds=(lock,)):
        os.close(lock)  # from here on the child alone has it
        os.close(hold_lock(places))
    assert Path(places.lock).read_text() == f"{os.getpid()}\n"
