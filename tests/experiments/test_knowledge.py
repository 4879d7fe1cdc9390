"""What policies believe of jobs, in comparisons and in advice: refused, taken, told and kept apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.advice import advise, workload_of
from berth.advice.replay import replay
from berth.cli.app import app
from berth.errors import SettingError
from berth.knowledge import make_knowledge
from tests.history.histories import history_of, hog

NOISY = "noisy?run=0.5&seed=1"
BY_RUN_TIME = "sjf-expected+first-fit"
COMMANDS = {
    "advise": "advise --history none",
    "compare": "compare synthetic:demo?jobs=20",
    "simulate": "simulate synthetic:demo?jobs=20",
}
FUNCTIONS: dict[str, Callable[[str], object]] = {
    "advise": lambda name: advise(None, knowledge=name),  # type: ignore[arg-type]
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


def test_advice_is_of_replays_under_the_same_knowledge(tmp_path: Path) -> None:
    workload = workload_of(history_of(hog(), tmp_path).records())
    by_run_time = "easy+sjf-expected+best-fit"
    assert replay(workload, by_run_time) != replay(workload, by_run_time, knowledge=NOISY)
    assert replay(workload, "fifo+best-fit") == replay(workload, "fifo+best-fit", knowledge=NOISY)
    advice = advise(workload, by_run_time, knowledge=NOISY)
    assert advice.knowledge == NOISY
    assert advice.now == replay(workload, by_run_time, knowledge=NOISY)
    for each in advice.tried[:2]:
        name = each.proposal.policy(by_run_time)
        assert replay(workload, name, each.proposal.jobs(workload), knowledge=NOISY) == each.outcome


def test_what_was_believed_stands_in_the_json_and_on_the_page(tmp_path: Path) -> None:
    words = "compare synthetic:demo?jobs=20 --policies fifo --knowledge noisy?run=0.5 --json"
    done = CliRunner().invoke(app, [*words.split(), "--out", str(tmp_path)], catch_exceptions=False)
    told = json.loads(done.stdout)
    assert told["knowledge"] == "noisy?run=0.5"
    assert told == json.loads((tmp_path / "result.json").read_text())
    assert "knowledge: noisy?run=0.5" in (tmp_path / "report.html").read_text()


def test_advise_says_what_was_believed(tmp_path: Path) -> None:
    history = history_of(hog(days=1), tmp_path)
    words = ["advise", "--history", str(history.folder), "--knowledge", "user"]
    runner = CliRunner()
    assert "(knowledge: user)" in " ".join(runner.invoke(app, words, catch_exceptions=False).stdout.split())
    assert json.loads(runner.invoke(app, [*words, "--json"]).stdout)["knowledge"] == "user"
