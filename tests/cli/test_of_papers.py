"""Commands and policies of other packages: found if they are installed, and named if they are not."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import PolicyError
from berth.policies import POLICIES, make_policy, names, policies_found

NOT_INSTALLED = """
import importlib.metadata, sys
importlib.metadata.entry_points = lambda **_: importlib.metadata.EntryPoints()
from berth.cli import main
sys.argv = ["berth", *{words!r}]
main()
"""


@pytest.mark.parametrize("command", ["experiment", "interference"])
def test_a_command_of_the_papers_says_in_one_line_what_to_install(command: str) -> None:
    code = NOT_INSTALLED.format(words=[command, "--help"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"berth: `berth {command}` is a part of berth-papers; install it with: ")
    assert "-m pip install" in line
    assert "berth-papers" in line or "/papers'" in line


def test_without_the_papers_help_lists_the_commands_of_berth_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berth.cli.app.find_spec", lambda name: None)
    shown = CliRunner().invoke(app, ["--help"]).stdout.split()
    assert {"compare", "experiment", "interference", "trace"} & set(shown) == {"compare", "trace"}


def test_a_policy_that_another_package_declares_is_in_the_registry_with_berths_own() -> None:
    pytest.importorskip("berth_papers")
    assert {"genetic-paper", "deeprm-max", "deeprm-mean", "dqn"} <= policies_found().keys() - POLICIES.keys()
    assert set(policies_found()) <= set(names())
    assert type(make_policy("genetic-paper")).__name__ == "GeneticPaper"
    with pytest.raises(PolicyError, match="did you mean 'genetic-paper'"):
        make_policy("genetic-papers")
