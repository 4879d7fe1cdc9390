"""Runs a story on a real Slurm of its own, and returns what it left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import pytest

PROGRAMS = ("slurmctld", "slurmd", "munged", "unshare", "setpriv", "slurmrestd")
CLUSTER = Path(__file__).parents[2] / "slurm_cluster.sh"
STORIES = Path(__file__).with_name("stories.sh")

TIMEOUT_S = 700
"""Of a whole story, which must have been stopped when pytest ends the worker after 900 s (`faulthandler_timeout`)."""
LEFT_S = 60
"""How long what a story has started may take to end, once it has been told to."""

needs_slurm = pytest.mark.skipif(
    any(shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin") is None for name in PROGRAMS),
    reason="needs the packages of .ci/packages: a Slurm",
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="jobs of several users need root")


def as_before(text: str) -> str:
    """A request as Slurm 22.05 shows it, `gres:gpu:1`; later ones show `gres/gpu:1`."""
    return text.replace("gres/", "gres:")


def tell(folder: Path, story: str, *, timeout_s: float = TIMEOUT_S, **settings: str) -> Path:
    """Tell a story, a script of bash, to a cluster in this folder; the folder, where it wrote what it saw. A story that
    fails, does not end or leaves a process behind fails the test with what it printed and the ends of the logs."""
    bin_ = Path(sys.executable).parent
    words = {
        **os.environ, "BERTH": str(bin_ / "berth"), "PYTHON": sys.executable, "CLUSTER_ACCOUNTING": "no",
        "GPU_JOB": str(Path(__file__).parents[1] / "local" / "gpu_job.py"), **settings,
    }  # fmt: skip
    # A file, since a pipe is open for as long as anything that the story has started.
    with (
        TemporaryFile("w+", errors="replace") as printed,
        subprocess.Popen(
            [CLUSTER, folder, f". {STORIES}\n{story}"], stdout=printed, stderr=printed, env=words,
            start_new_session=True,
        ) as cluster,
    ):  # fmt: skip
        wrong = ""
        try:
            if status := cluster.wait(timeout_s):
                wrong = f"the story ended with {status}"
        except subprocess.TimeoutExpired:
            wrong = f"the story has not ended for {timeout_s:.0f} s; there run:\n{_running(cluster.pid)}"
        if not wrong and (left := _left(cluster.pid)):
            wrong = f"for {LEFT_S:.0f} s after the story's end there still run:\n{left}"
        if wrong:
            with suppress(ProcessLookupError):
                os.killpg(cluster.pid, signal.SIGTERM)  # it takes its daemons along
                with suppress(subprocess.TimeoutExpired):
                    cluster.wait(LEFT_S)
                os.killpg(cluster.pid, signal.SIGKILL)
        printed.seek(0)
        said = printed.read()
    if wrong and re.search("unshare:.* not permitted", said):
        pytest.skip("this machine allows no network namespaces")
    if wrong:
        logs = [
            folder / "berth.err",
            folder / "state" / "decisions.jsonl",
            *sorted(folder.glob("log/slurm*")),
        ]
        ends = "".join(f"--- {path.name}:\n{_end(path)}" for path in logs if path.is_file())
        pytest.fail(f"{wrong}\n--- printed:\n{said[-10_000:]}{ends}", pytrace=False)
    return folder


def _left(group: int) -> str:
    """What still runs of a group of processes once they have had time to end."""
    end_s = time.monotonic() + LEFT_S
    while (running := _running(group)) and time.monotonic() < end_s:
        time.sleep(0.05)
    return running


def _running(group: int) -> str:
    """A line for each process of a group that has not ended: its number, where in the kernel it waits, its command."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            state, _, its_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"{folder.name} {state} {_wchan(folder)} {command[:300]}")
    return "\n".join(found)


def _wchan(folder: Path) -> str:
    """Where in the kernel a process waits; "?" if this machine does not say."""
    try:
        return (folder / "wchan").read_text()
    except OSError:
        return "?"


def _end(log: Path, lines: int = 25) -> str:
    return "".join(log.read_text(errors="replace").splitlines(keepends=True)[-lines:])
