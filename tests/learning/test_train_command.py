"""`berth train`, as one types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def berth(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from berth.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.mark.slow
def test_train_keeps_its_checkpoint_draws_its_curve_and_refuses_another_training(tmp_path: Path) -> None:
    command = ["train", "--learner", "dqn-paper", "--workload", "GPU_light", "--interference", "none"]
    command += ["--slots", "2", "--iterations", "2", "--checkpoints", "kept"]
    done = berth(*command, "--curve", "curve.html", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [point["iteration"] for point in answer["curve"]] == [1, 2]
    assert answer["curve"][1]["measured"] > 0
    assert answer["files"] == ["curve.html"]
    assert "plotly" in (tmp_path / "curve.html").read_text()
    again = berth(*command, "--resume", "--seed", "1", cwd=tmp_path)
    assert again.returncode == 2
    assert "it is of another training: its seed is 0; expected 1" in again.stderr
    without = berth("train", "--resume", cwd=tmp_path)
    assert without.returncode == 2
    assert "--checkpoints" in without.stderr


def test_without_the_extra_train_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("raise ModuleNotFoundError(\"No module named 'jax'\", name='jax')")
    code = "import sys; sys.path.insert(0, '.'); from berth.cli import main; main()"
    command = [sys.executable, "-c", code, "train"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "-m pip install" in done.stderr
    assert "[learn]'" in done.stderr
    assert "'berth[learn]'" not in done.stderr, "an index has another project of that name"
