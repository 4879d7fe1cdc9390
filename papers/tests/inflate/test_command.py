"""`berth experiment inflate` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_commands import answer, berth


def test_inflate_prints_what_the_documentation_says() -> None:
    result = answer(
        "experiment", "inflate", "--nodes", "4x4:V100", "--pods", "synthetic:demo?jobs=50", "--json"
    )
    assert isinstance(result, dict)
    assert set(result) == {
        *("policy", "seed", "allocation_pct", "fragmentation_ratio_pct", "seconds"),
        *("batch", "arrivals", "placed", "nodes", "gpus", "knowledge"),
    }
    assert (result["batch"], result["nodes"], result["gpus"]) == (1, 4, 16)
    assert 0 < result["placed"] <= result["arrivals"]
    assert (result["policy"], result["seed"]) == ("fgd", 42)
    assert (len(result["allocation_pct"]), len(result["fragmentation_ratio_pct"])) == (131, 131)


def test_inflate_makes_a_report_of_several_policies(tmp_path: Path) -> None:
    arguments = (
        "--nodes",
        "4x4:V100",
        "--pods",
        "synthetic:demo?jobs=50",
        "--policy",
        "fgd,best-fit",
        "--seeds",
        "2",
    )
    done = berth("-q", "experiment", "inflate", *arguments, "--out", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [result["seed"] for result in json.loads((tmp_path / "result.json").read_text())] == [
        42,
        43,
        42,
        43,
    ]
    assert "best-fit" in (tmp_path / "report.html").read_text()
