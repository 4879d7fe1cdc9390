"""Conditions of a run that cannot be, from the command line: one line that names the option, and status 2."""

from __future__ import annotations

from dataclasses import fields

import pytest

from berth.cli.run_options import RunOptions, conditions_asked
from berth.experiments.compare.conditions import Conditions, conditions_of
from tests.command import berth


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--mtbf", "nan"), "--mtbf is nan; expected a number, at most 320,255,973,501"),
        (("--mtbf", "9", "--mttr", "inf"), "--mttr is inf; expected a number, at most 320,255,973,501"),
        (("--mttr", "3"), "--mttr is the repair time of nodes that fail by --mtbf; give both"),
        (("--checkpoint", "inf"), "--checkpoint is inf; expected a number, at most 19,215,358,410,114"),
        (
            ("--checkpoint-write", "5"),
            "--checkpoint-write is the time to write a checkpoint; say how often with --checkpoint",
        ),
        (("--restart", "nan"), "--restart is nan; expected a number, at most 1,152,921,504,606,846"),
        (("--round", "nan"), "--round is nan; expected a number, at most 1,152,921,504,606,846"),
        (
            ("--knowledge", "dreams"),
            "no knowledge 'dreams'; there are oracle, user, history, noisy, and your own as my.module:thing",
        ),
        (("--quota", "vcX=2"), "quotas of 'vcX', of which there is no job; the jobs are of ''"),
    ],
)
def test_a_condition_that_cannot_be_is_told(options: tuple[str, ...], told: str) -> None:
    done = berth("simulate", "synthetic:demo?jobs=20", *options)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"berth: {told}\n")


def test_simulate_is_compare_with_one_policy() -> None:
    def printed(*command: str) -> str:
        return berth(*command, "synthetic:demo?jobs=40", "--round", "60", "--restart", "5", "--json").stdout

    assert printed("simulate", "--policy", "sjf") == printed("compare", "--policies", "sjf")


def test_every_condition_can_be_set_on_the_command_line() -> None:
    asked = conditions_asked(RunOptions())
    assert set(asked) | {"interference_name"} == {field.name for field in fields(Conditions)}
    assert conditions_of(asked, ()) == Conditions(interference_name="none")
