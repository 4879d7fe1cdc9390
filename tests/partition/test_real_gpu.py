"""bench/partition_real_gpu.py runs to its end over the fake driver, so that it will where a GPU is at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest
from tests.partition.conftest import ROOT

SCRIPT = ROOT / "bench" / "partition_real_gpu.py"
QUICK = ["--fake-gpu", "--mem-mib", "512", "--share-s", "0.5", "--rounds", "1"]


def run(*words: str | Path) -> str:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_FAKE")}
    return subprocess.run(
        [sys.executable, SCRIPT, *words], env=ours, capture_output=True, text=True, check=False
    ).stdout


@pytest.mark.slow
@pytest.mark.usefixtures("native")
def test_all_of_it_runs_and_the_file_says_on_what(tmp_path: Path) -> None:
    """How well a share is kept and what calls cost is not asked here, on cores that others use."""
    run(*QUICK, "--out", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["card"], found["versions"]["driver"], found["mem_mib"]) == ("berth fake GPU", "fake", 16384)
    steps = {step["name"]: step for step in found["steps"]}
    kinds = [name.partition(":")[0] for name in steps]
    asked = ("fact", "prove", "memory", "checkpoint", "overhead", "NVML", "share", "program", "training")
    assert list(dict.fromkeys(kinds)) == list(asked)
    assert [kinds.count(kind) for kind in asked] == [12, 1, 11, 3, 7, 4, 4, 7, 3]
    page = (ROOT / "bench" / "results" / "partition.md").read_text()
    for shown in json.loads(page.partition("```json\n")[2].partition("```")[0])["steps"]:
        assert steps[shown["name"]]["figures"].keys() == shown["figures"].keys()
    assert steps["fact: rounding"]["figures"]["asked_bytes"] == 32 * ((1 << 20) + 1)
    assert steps["prove"]["ok"], steps["prove"]["said"]
    assert [
        step["said"] for name, step in steps.items() if name.startswith("memory") and not step["ok"]
    ] == []
    assert steps["NVML: under a limit"]["figures"]["total_mib"] == 512
    assert steps["memory: linear"]["figures"]["given_mib"] == 512
    for name, step in steps.items():
        if name.startswith("share"):
            assert all(one["launches"] > 0 for one in step["figures"].values())


@pytest.mark.slow
def test_a_limit_that_is_passed_is_found(tmp_path: Path, native: Path) -> None:
    """Without the library nothing is refused, and the script says so."""
    program = tmp_path / "without.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        "import partition_real_gpu as bench\n"
        f"bench.library_path = lambda: {str(native / 'libcut.so')!r}\n"
        "bench.main()\n"
    )
    words = [sys.executable, program, *QUICK, "--seconds", "15", "--out", tmp_path / "found.json"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    steps = {step["name"]: step for step in json.loads((tmp_path / "found.json").read_text())["steps"]}
    assert steps["memory: linear"]["ok"] is False
    assert steps["memory: linear"]["figures"]["given_mib"] == 2048


@pytest.mark.skipif(find_library("nvidia-ml") is not None, reason="there is a driver here, and maybe a GPU")
def test_a_machine_without_a_gpu_is_told(tmp_path: Path) -> None:
    assert "not run: there is no GPU on this machine" in run("--out", tmp_path / "found.json")
    assert not (tmp_path / "found.json").exists()
