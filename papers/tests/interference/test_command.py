"""`berth interference` as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_commands import answer, berth
from tests.cli.test_profiles import ended

ALONE = "model,dataset,batchsize,amp,gpu_util,gmem_util,gmem\na,d,1,0,90,60,5000\nb,d,1,0,40,20,3000\n"


PAIRS = "model1,dataset1,batchsize1,amp1,speed1,model2,dataset2,batchsize2,amp2,speed2\n" + (
    "a,d,1,0,0.6,b,d,1,0,0.7\na,d,1,0,0.52,a,d,1,0,0.5\nb,d,1,0,0.9,b,d,1,0,0.88\n"
)


@pytest.fixture
def measured(tmp_path: Path) -> tuple[Path, Path]:
    alone, pairs = tmp_path / "alone.csv", tmp_path / "pairs.csv"
    alone.write_text(ALONE)
    pairs.write_text(PAIRS)
    return alone, pairs


def test_fractions_where_per_cent_is_expected_are_refused(measured: tuple[Path, Path]) -> None:
    measured[0].write_text(ALONE.replace(",90,", ",0.9,").replace(",40,", ",0.4,"))
    refused = berth("interference", "evaluate", "--alone", measured[0], "--pairs", measured[1])
    assert refused.returncode == 2
    assert "column 'gpu_util': no value is above 1; expected per cent" in refused.stderr


def test_evaluate_prints_the_error_and_the_number_of_pairs(measured: tuple[Path, Path]) -> None:
    files = ("--alone", measured[0], "--pairs", measured[1])
    none = answer("interference", "evaluate", *files, "--model", "none", "--json")
    error = round((0.4 + 0.3 + 0.48 + 0.5 + 0.1 + 0.12) / 6, 6)
    assert none == {"mae": error, "pairs": 3, "mode": "none"}
    found = answer("interference", "evaluate", *files, "--json")
    assert isinstance(found, dict)
    assert list(found) == ["mae", "pairs", "mode"]
    assert found["mae"] < 0.2


def test_a_fitted_model_is_used_by_its_file(measured: tuple[Path, Path], tmp_path: Path) -> None:
    files = ("--alone", measured[0], "--pairs", measured[1])
    model = tmp_path / "mine.json"
    fitted = answer("interference", "fit", *files, model, "--folds", "3", "--json")
    assert isinstance(fitted, dict)
    assert (fitted["pairs"], fitted["model"]) == (3, str(model))
    found = answer("interference", "evaluate", *files, "--model", model, "--json")
    assert isinstance(found, dict)
    assert found["mae"] < 0.1
    runs = answer("simulate", "synthetic:demo?jobs=40", "--interference", model, "--json")
    assert isinstance(runs, dict)
    assert ended(runs) == 40
    assert "cannot be divided into 5 folds" in berth("interference", "fit", *files, model).stderr
    assert "expected a name that ends in .json" in berth("interference", "fit", *files, tmp_path / "m").stderr


def test_a_missing_model_or_column_ends_with_one_message(measured: tuple[Path, Path], tmp_path: Path) -> None:
    files = ("--alone", measured[0], "--pairs", measured[1])
    gone = berth("interference", "evaluate", *files, "--model", tmp_path / "gone.json")
    assert (gone.returncode, gone.stderr.count("\n")) == (2, 1)
    assert "make one with `berth interference fit`" in gone.stderr
    measured[0].write_text("model\n")
    assert "has no column 'dataset'" in berth("interference", "evaluate", *files).stderr


def test_lucid_s_pairs_are_predicted(real_data: Callable[[str], Path]) -> None:
    files = ("--alone", real_data("lucid/single.csv"), "--pairs", real_data("lucid/colocate.csv"))
    found = json.loads(berth("interference", "evaluate", *files, "--json").stdout)
    assert found["pairs"] == 972
    assert found["mae"] <= 0.05
