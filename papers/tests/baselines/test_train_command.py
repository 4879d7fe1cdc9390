"""`berth train` with learners of the baselines, as one types it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
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
def test_train_keeps_its_checkpoint_draws_its_curve_and_refuses_another_training(tmp_path: Path) -> None:
    command = ["train", "--learner", "dqn", "--workload", "GPU_light", "--interference", "none"]
    command += ["--slots", "2", "--iterations", "2", "--checkpoints", "kept"]
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
    again = berth(*command, "--resume", "--seed", "1", cwd=tmp_path)
    assert again.returncode == 2
    assert "it is of another training: its seed is 0; expected 1" in again.stderr
    assert "the first network" not in again.stderr, "refused before anything is compiled"
    without = berth("train", "--resume", cwd=tmp_path)
    assert without.returncode == 2
    assert "--checkpoints" in without.stderr


@pytest.mark.slow
def test_an_interruption_tells_what_is_kept_and_how_one_goes_on(tmp_path: Path) -> None:
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    code += "from berth.cli import main; main()"
    command = [sys.executable, "-c", code, "train", "--learner", "dqn", "--workload", "GPU_light"]
    command += ["--interference", "none", "--slots", "2", "--iterations", "1000000", "--checkpoints", "kept"]
    running = subprocess.Popen([*command, "--resume"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    kept = tmp_path / "kept" / "checkpoint.npz"
    while not kept.exists() and running.poll() is None:
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    told = running.communicate(timeout=300)[1]
    assert running.returncode == 130
    assert "berth: kept has no checkpoint; the training starts from the beginning" in told
    said = r"0 of 1000000 iterations are in kept/checkpoint.npz; the same command with --resume continues from there"
    assert re.search(said, told), told
