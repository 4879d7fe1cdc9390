"""Runs a story on a real Slurm of its own, and returns what it left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = ("slurmctld", "slurmd", "munged", "unshare", "setpriv", "slurmrestd")
CLUSTER = Path(__file__).parents[2] / "slurm_cluster.sh"
STORIES = Path(__file__).with_name("stories.sh")

TIMEOUT_S = 600

needs_slurm = pytest.mark.skipif(
    any(shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin") is None for name in PROGRAMS),
    reason="needs the packages of .ci/packages: a Slurm",
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="jobs of several users need root")


def as_before(text: str) -> str:
    """A request as Slurm 22.05 shows it, `gres:gpu:1`; later ones show `gres/gpu:1`."""
    return text.replace("gres/", "gres:")


def tell(folder: Path, story: str, *, timeout_s: float = TIMEOUT_S, **settings: str) -> Path:
    """Tell a story, a script of bash, to a cluster in this folder; the folder, where it wrote what it saw. Raises
    TimeoutExpired."""
    bin_ = Path(sys.executable).parent
    words = {
        **os.environ, "BERTH": str(bin_ / "berth"), "PYTHON": sys.executable, "CLUSTER_ACCOUNTING": "no",
        "GPU_JOB": str(Path(__file__).parents[1] / "local" / "gpu_job.py"), **settings,
    }  # fmt: skip
    with subprocess.Popen(
        [CLUSTER, folder, f". {STORIES}\n{story}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=words, start_new_session=True,
    ) as cluster:  # fmt: skip
        try:
            out, err = cluster.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(cluster.pid, signal.SIGTERM)  # it takes its daemons along
            raise
    if "unshare" in err and "not permitted" in err:
        pytest.skip("this machine allows no network namespaces")
    assert cluster.returncode == 0, out[-4000:] + err[-6000:]
    return folder
