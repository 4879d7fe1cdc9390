"""`berth train`, as one types it."""

from __future__ import annotations

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
        (("--curve", "c.pdf"), "c.pdf: expected a name that ends in .html"),
        (("--curve", "none/c.html"), "there is no folder none"),
        (("--out", "none/model.npz"), "there is no folder none"),
        (("--slots", "11"), "11; expected 1 to 10"),
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


def test_without_the_extra_train_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("raise ModuleNotFoundError(\"No module named 'jax'\", name='jax')")
    code = "import sys; sys.path.insert(0, '.'); from berth.cli import main; main()"
    command = [sys.executable, "-c", code, "train"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "-m pip install" in done.stderr
    assert "[learn]'" in done.stderr
    assert "'berth[learn]'" not in done.stderr, "an index has another project of that name"
