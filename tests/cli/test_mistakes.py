"""Mistakes in the words of a command are said in one line, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import berth


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("frobnicate", "berth: No such command 'frobnicate'; see: berth --help\n"),
        ("--zzz", "berth: No such option: --zzz; see: berth --help\n"),
        ("trace frob", "berth: No such command 'frob'; see: berth trace --help\n"),
        (
            "compare synthetic:demo --policies fifo --seeds 0",
            "berth: Invalid value for '--seeds': 0; expected 1 to 100000; see: berth compare --help\n",
        ),
        (
            "cost",
            "berth: berth cost needs prices: name a list with --prices FILE.toml; docs/accounting.md shows one\n",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(words: str, said: str, tmp_path: Path) -> None:
    done = berth(*words.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_a_refused_import_leaves_no_history_behind(tmp_path: Path) -> None:
    assert berth("import", "sacct", "none.txt", cwd=tmp_path).returncode == 2
    assert list(tmp_path.iterdir()) == []
    kept = tmp_path / "history"
    kept.mkdir()
    assert berth("import", "sacct", "none.txt", cwd=tmp_path).returncode == 2
    assert kept.is_dir(), "what was there before stays"


def test_gpu_models_that_no_node_has_end_with_a_status(tmp_path: Path) -> None:
    done = berth(
        *("compare", "synthetic:demo?jobs=20", "--policies", "fifo", "--cluster", "4x8:XX"), cwd=tmp_path
    )
    assert done.returncode == 1
    assert "jobs ask for GPU models that --cluster 4x8:XX does not have: its GPUs are XX" in done.stderr
