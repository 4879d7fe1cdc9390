"""The bench of real trainings says why it does not run, where it cannot, and goes on where it was interrupted."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from berth.errors import ProfileError
from berth.partition import fake_driver_folder
from berth.profiles.recorder import NvmlCard
from berth_papers.interference.measurements import read_measurements

BENCH = Path(__file__).parents[3] / "bench"


def a_gpu_is_there() -> bool:
    try:
        NvmlCard.open()
    except ProfileError:
        return False
    return True


def test_without_a_gpu_or_pytorch_it_says_so_and_runs_nothing() -> None:
    if a_gpu_is_there() and importlib.util.find_spec("torch") is not None:
        pytest.skip("there is a GPU and PyTorch: it would run for minutes")
    ran = subprocess.run(
        [sys.executable, str(BENCH / "colocation_real_gpu.py")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(
        ("not run: there is no GPU on this machine (", "not run: PyTorch is not installed")
    )
    assert len(ran.stdout.splitlines()) == 1


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("colocation_real_gpu")


def test_steps_are_counted_between_two_moments(bench: ModuleType) -> None:
    assert bench.rate([(10.0, 0), (12.0, 4), (14.0, 20)], 11.0, 14.0) == 6.0


def test_each_training_is_in_pairs_triples_and_quadruples(bench: ModuleType) -> None:
    every = list(bench.groups())
    for size, count in ((2, 15), (3, 5), (4, 4)):
        chosen = [group for group in every if len(group) == size]
        assert len(set(chosen)) == len(chosen) == count
        assert {name for group in chosen for name in group} == set(bench.NAMES)


@pytest.mark.slow
def test_it_goes_on_where_it_was_interrupted_and_writes_what_models_are_fitted_from(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "NAMES", ("mlp", "tiny", "attention", "recurrent"))
    monkeypatch.setattr(bench, "save", lambda *_: None)
    monkeypatch.setenv("BERTH_FAKE_CARD", str(tmp_path / "card"))
    card = NvmlCard.open(0, fake_driver_folder())

    def given(ends_s: float):
        return bench.Bench(card, 0.2, tmp_path, True, ends_s)

    for name in bench.NAMES:
        bench.alone(given(math.inf), name)
    with pytest.raises(bench.OutOfTimeError):
        bench.measure(given(-math.inf), ("time-sliced",), "")
    before = {file: file.read_bytes() for file in tmp_path.glob("alone-*.json")}
    bench.measure(given(math.inf), ("time-sliced",), "")
    assert {file: file.read_bytes() for file in before} == before
    pairs = read_measurements(tmp_path / "single.csv", tmp_path / "pairs-time-sliced.csv")
    assert (len(pairs), len(pairs.applications)) == (6, 4)
    found = json.loads((tmp_path / "groups.json").read_text())
    assert sorted({len(one["group"]) for one in found}) == [2, 3, 4]
    bench.measure(given(-math.inf), ("time-sliced",), "")  # all is kept: nothing is run again
