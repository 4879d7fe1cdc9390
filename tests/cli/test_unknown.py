"""What is said of cards, folders and services that a model of interference cannot go by."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.cluster import Cluster
from berth.engine import simulate
from berth.interference import make_interference
from berth.model import FOREVER_MS, EventKind, Job, Node
from berth.profiles import THESIS_GPU, run_time_ms, thesis_profiles

JOBS = "id,submit_ms,work_ms,application,gpus\na,0,115000,vgg16,1\nb,0,115000,vgg16,1\n"


@pytest.mark.parametrize(("card", "known"), [("T4", True), ("t4", False)])
def test_a_card_of_unknown_memory_is_named(tmp_path: Path, card: str, known: bool) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    asked = ["simulate", str(tmp_path / "jobs.csv"), "--cluster", f"1x1:{card}", "--policy", "greedy"]
    result = CliRunner().invoke(app, [*asked, "--interference", "mps"])
    assert result.exit_code == 0, result.output
    assert ("the memory of these GPUs is unknown" in result.stderr) is not known


def test_a_folder_without_profiles_is_said(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "none").mkdir()
    asked = ["simulate", str(tmp_path / "jobs.csv"), "--cluster", "1x1:T4", "--policy", "greedy"]
    given = ["--interference", "mps", "--profiles", str(tmp_path / "none")]
    result = CliRunner().invoke(app, [*asked, *given])
    assert result.exit_code != 0
    assert "no profile in" in str(result.exception) + result.output


@pytest.mark.parametrize("policy", ["greedy", pytest.param("learned", marks=pytest.mark.slow)])
def test_a_service_that_never_ends_is_placed(policy: str) -> None:
    work_ms = run_time_ms(thesis_profiles()["alexnet"])
    jobs = [
        Job("service", 0, FOREVER_MS, application="HOOMD"),
        Job("job", 10, work_ms, application="alexnet"),
    ]
    cluster = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
    events = simulate(jobs, cluster, policy, interference=make_interference("mps"))
    assert sum(event.kind is EventKind.START for event in events) >= 1
