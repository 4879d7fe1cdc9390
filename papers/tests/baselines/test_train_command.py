"""`berth train` with learners of the baselines, as one types it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from berth.cli import main


def berth(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from berth.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--learner", "dqn-as-printed", "--out", "p1.npz"),
            "no model is written: no policy decides by what dqn-as-printed learns",
        ),
    ],
)
def test_what_could_not_be_written_is_refused_before_the_training(
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["berth", "train", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capfd.readouterr().err
    assert message in re.sub(r"[│\s]+", " ", told)
    assert "training learned" not in told


@pytest.mark.slow
def test_train_writes_its_model_and_draws_its_curve(tmp_path: Path) -> None:
    command = ["train", "--learner", "dqn", "--workload", "GPU_light", "--interference", "none"]
    command += ["--slots", "2", "--iterations", "2"]
    done = berth(*command, "--curve", "curve.html", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [point["iteration"] for point in answer["curve"]] == [0, 1, 2]
    assert min(answer["curve"][0]["measured"], answer["curve"][2]["measured"]) > 0
    told = done.stderr.splitlines()
    assert told[0].startswith("training dqn: 0 of 2, the first network is made")
    assert told[-1].startswith("training dqn: 2 of 2, ")
    assert answer["files"] == ["model.npz", "curve.html"]
    assert "plotly" in (tmp_path / "curve.html").read_text()
