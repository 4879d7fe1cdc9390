"""What policies believe of jobs, in comparisons: refused, taken, told and kept apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import SettingError
from berth.knowledge import make_knowledge

NOISY = "noisy?run=0.5&seed=1"
BY_RUN_TIME = "sjf-expected+first-fit"
COMMANDS = {
    "compare": "compare synthetic:demo?jobs=20",
    "simulate": "simulate synthetic:demo?jobs=20",
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


def test_what_was_believed_stands_in_the_json_and_on_the_page(tmp_path: Path) -> None:
    words = "compare synthetic:demo?jobs=20 --policies fifo --knowledge noisy?run=0.5 --json"
    done = CliRunner().invoke(app, [*words.split(), "--out", str(tmp_path)], catch_exceptions=False)
    told = json.loads(done.stdout)
    assert told["knowledge"] == "noisy?run=0.5"
    assert told == json.loads((tmp_path / "result.json").read_text())
    assert "knowledge: noisy?run=0.5" in (tmp_path / "report.html").read_text()
