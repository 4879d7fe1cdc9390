"""What berth 0.2 wrote is read as berth 0.2 read it; `of_0_2/README.md` says how it was made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app

OF_0_2 = Path(__file__).parent / "of_0_2"
SACCT = Path(__file__).parent / "importing" / "recorded" / "24.11.5" / "sacct.txt"


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A copy that a test may write to."""
    return Path(shutil.copytree(OF_0_2 / "history", tmp_path / "history"))


def berth(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("keys", ["user,month", "application", "state"])
def test_statistics_are_those_that_it_gave(history: Path, keys: str) -> None:
    said = json.loads(berth("stats", "--history", history, "--by", keys, "--json"))
    then = json.loads((OF_0_2 / f"stats-{keys.replace(',', '-')}.json").read_text(encoding="utf-8"))
    assert said == then


def test_what_it_imported_is_not_imported_again(history: Path) -> None:
    before = berth("stats", "--history", history, "--by", "job", "--top", "0", "--json")
    sacct = json.loads(berth("import", "sacct", SACCT, "--history", history, "--json"))
    records = berth(
        "import", "records", OF_0_2 / "records.parquet", "--cluster", "made", "--history", history
    )
    assert (sacct["imported"], sacct["updated"], sacct["unchanged"]) == (0, 0, 12)
    assert "imported 0, updated 0, unchanged 400" in records
    assert berth("stats", "--history", history, "--by", "job", "--top", "0", "--json") == before


def test_its_records_are_a_trace_to_replay() -> None:
    trace = OF_0_2 / "records.parquet"
    said = json.loads(berth("simulate", trace, "--cluster", "4x8", "--policy", "fifo+first-fit", "--json"))
    wanted = ["Under fifo+first-fit, the mean wait is 89.8 minutes and the GPU allocation is 56.9 %."]
    assert said["answers"] == wanted
