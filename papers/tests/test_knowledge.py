"""What policies believe of jobs, in every experiment of the papers: refused, taken, told and kept apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import SettingError
from berth.interference import make_interference
from berth.knowledge import make_knowledge
from berth.traces import read, read_nodes
from berth_papers.colocation.disagreement import disagreement
from berth_papers.colocation.experiment import measure_colocation
from berth_papers.genetic.batch_file import random_batches
from berth_papers.genetic.cases import case_of
from berth_papers.genetic.optimality import measure_optimality
from berth_papers.genetic.utilisation import measure_utilisation
from berth_papers.inflate import inflate
from berth_papers.pai import pai

NOISY = "noisy?run=0.5&seed=1"


BY_RUN_TIME = "sjf-expected+first-fit"


COMMANDS = {
    "colocation": "experiment colocation",
    "utilisation": "experiment utilisation none.csv",
    "optimality": "experiment optimality --batches none.json",
    "inflate": "experiment inflate --nodes none.csv --pods none.csv",
    "pai": "experiment pai none.csv",
}


FUNCTIONS: dict[str, Callable[[str], object]] = {
    "colocation": lambda name: measure_colocation(knowledge=name),
    "utilisation": lambda name: measure_utilisation([case_of("none.csv")], knowledge=name),
    "optimality": lambda name: measure_optimality([], knowledge=name),
    "inflate": lambda name: inflate([], [], "fgd", seed=0, knowledge=name),
    "pai": lambda name: pai("none.csv", knowledge=name),
}


@pytest.mark.parametrize("name", ["dreams", "noisy?run=9", "user?run=1"])
@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_refuses_what_there_is_not_before_it_reads_anything(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*COMMANDS[command].split(), "--knowledge", name])
    with pytest.raises(SettingError) as refused:
        make_knowledge(name)
    assert isinstance(done.exception, SettingError)
    assert str(done.exception) == str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_function_behind_each_command_refuses_it_too(function: str) -> None:
    with pytest.raises(SettingError, match="no knowledge 'dreams'; there are oracle, user, history, noisy"):
        FUNCTIONS[function]("dreams")


def test_what_was_believed_stands_in_the_json_and_on_the_page(tmp_path: Path) -> None:
    pytest.importorskip("highspy", reason="the optimum needs the extra 'optimum'")
    commands = {
        "optimality": "experiment optimality --count 1 --instances 8 --machines 3 --policies fgd",
        "utilisation": "experiment utilisation synthetic:demo?jobs=20 --seeds 1 --policies fifo",
        "inflate": "experiment inflate --nodes 2x2:T4 --pods synthetic:demo?jobs=20 --policy fgd",
    }
    for name, command in commands.items():
        out = tmp_path / name
        words = [*command.split(), "--knowledge", "noisy?run=0.5", "--out", str(out), "--json"]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        told = json.loads(done.stdout)
        assert told["knowledge"] == "noisy?run=0.5", name
        assert told == json.loads((out / "result.json").read_text())
        assert "knowledge: noisy?run=0.5" in (out / "report.html").read_text(), name


CASE = case_of("synthetic:pai-like?jobs=150&load=8,part=0.01")


def test_utilisation_under_wrong_run_times_is_another_for_who_goes_by_them() -> None:
    def found(knowledge: str) -> dict[str, float]:
        outcomes = measure_utilisation([CASE], (BY_RUN_TIME, "fifo"), seeds=(0,), knowledge=knowledge)
        return {one.policy: one.completion_s for one in outcomes}

    true, wrong = found("oracle"), found(NOISY)
    assert true["fifo"] == wrong["fifo"]
    assert true[BY_RUN_TIME] != wrong[BY_RUN_TIME]
    assert found("user")[BY_RUN_TIME] == true["fifo"]  # nobody says anything there: in the order of the queue


def test_batches_under_wrong_run_times_are_placed_otherwise_by_who_goes_by_them() -> None:
    pytest.importorskip("highspy", reason="the optimum needs the extra 'optimum'")
    tasks = random_batches(3, instances=20, machines=6)

    def found(knowledge: str) -> list[list[tuple[str, ...]]]:
        batches = measure_optimality(tasks, (BY_RUN_TIME, "fifo+first-fit"), knowledge=knowledge)
        return [
            [tuple(one.job.id for one in batch.gaps[at].placements) for batch in batches] for at in (0, 1)
        ]

    true, wrong = found("oracle"), found(NOISY)
    assert true[1] == wrong[1]
    assert true[0] != wrong[0]


def test_an_inflation_tells_what_was_believed_and_who_plans_for_usual_requests_goes_by_it() -> None:
    nodes = [node for node in read_nodes("synthetic:pai-like") if node.gpus][::60]
    pods = list(read("synthetic:pai-like?jobs=150&seed=2"))

    def found(policy: str, knowledge: str) -> list[float]:
        result = inflate(nodes, pods, policy, seed=3, knowledge=knowledge)
        assert result.knowledge == knowledge
        curve = result.curve
        return [*curve.allocation_pct.tolist(), *curve.fragmentation_ratio_pct.tolist()]

    assert found("fifo", "oracle") == found("fifo", "user") == found("fifo", NOISY)
    assert found("fgd", "oracle") == found("fgd", NOISY)  # the usual requests are those of the workload
    assert found("fgd", "oracle") != found("fgd", "user")  # which users do not tell of


@pytest.mark.slow
def test_co_location_under_wrong_run_times_is_another_for_who_goes_by_them() -> None:
    def found(knowledge: str) -> dict[str, float]:
        result = measure_colocation(
            ["GPU_light"], policies=("fifo", "greedy"), seeds=(0,), jobs=12, knowledge=knowledge
        )
        assert result.knowledge == knowledge
        return {one.policy: one.total_s for one in result.outcomes}

    true, wrong, user = found("oracle"), found(NOISY), found("user")
    assert true["fifo"] == wrong["fifo"] == user["fifo"]
    assert true["greedy"] < wrong["greedy"]
    assert user["greedy"] == user["fifo"]  # users tell of no profiles, so that each job runs alone


def test_the_network_beside_greedy_believes_what_the_runs_do() -> None:
    model = make_interference("mps")
    true, user, learns = (
        disagreement("GPU_light", model, (0,), knowledge)
        for knowledge in ("oracle", "user", "history?begin=empty")
    )
    assert true.decisions > 0
    assert user.decisions == 0  # without profiles no job is offered a place beside another
    assert 0 < learns.decisions < true.decisions  # what is not recorded yet runs alone


@pytest.mark.slow
def test_a_run_that_was_kept_under_one_kind_is_not_taken_for_one_under_another(tmp_path: Path) -> None:
    def found(knowledge: str, keep: Path | None = tmp_path) -> list[float]:
        outcomes = measure_utilisation(
            [CASE], (BY_RUN_TIME, "fifo"), seeds=(0,), knowledge=knowledge, keep=keep
        )
        return [one.completion_s for one in outcomes]

    true, wrong = found("oracle", None), found(NOISY, None)
    assert true != wrong
    assert [found("oracle"), found(NOISY), found("oracle")] == [true, wrong, true]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    assert found("oracle") == true
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")} == written
    assert len(written) == 2  # the one takes the other's place, as under other conditions


@pytest.mark.slow
def test_co_location_that_was_stopped_under_another_kind_leaves_the_first_as_it_was(tmp_path: Path) -> None:
    def found(knowledge: str, stop_at: float | None = None) -> list[object]:
        def heard(done: float, _: float, __: str) -> None:
            if stop_at is not None and done >= stop_at:
                raise KeyboardInterrupt

        result = measure_colocation(
            ["GPU_light"],
            policies=("fifo", "greedy"),
            seeds=(0,),
            jobs=12,
            knowledge=knowledge,
            keep=tmp_path,
            progress=heard,
        )
        return list(result.outcomes)

    true = found("oracle")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(KeyboardInterrupt):
        found(NOISY, stop_at=1)
    assert {path: path.read_bytes() for path in files} == files
    assert found("oracle") == true != found(NOISY)
