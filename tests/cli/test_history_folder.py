"""Which history a command reads if no --history names one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.command import berth
from tests.console.histories import DAYS, made

ANN = DAYS
"""Jobs of ann in each history."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a machine whose queue has a history of its own."""
    made(tmp_path / "state")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
    return {**inherited, "BERTH_QUIET": "1", "BERTH_STATE": str(tmp_path / "state")}


def jobs_of_ann(folder: Path, environment: dict[str, str], *words: str) -> tuple[int, str]:
    """How many jobs `berth stats` finds, and what it says on standard error."""
    done = berth("stats", "--by", "user", "--json", *words, cwd=folder, env=environment)
    rows = {row["user"]: row["jobs"] for row in json.loads(done.stdout)["rows"]}
    return rows["ann"], done.stderr


def test_without_another_the_history_of_the_queue_is_read_and_nothing_is_said(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    assert jobs_of_ann(tmp_path, environment) == (ANN, "")


def test_a_history_here_is_read_and_the_one_that_it_hides_is_named(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    made(tmp_path)
    jobs, told = jobs_of_ann(tmp_path, environment)
    own = tmp_path / "state" / "history"
    assert (jobs, told) == (
        ANN,
        f"berth: reading ./history, not the history of this machine's queue; for that: --history {own}\n",
    )
    assert jobs_of_ann(tmp_path, environment, "--history", "history") == (ANN, "")
    assert jobs_of_ann(tmp_path, {**environment, "BERTH_HISTORY": "history"}) == (ANN, "")
    assert jobs_of_ann(tmp_path / "state", environment) == (ANN, "")


def test_a_command_that_replays_a_trace_says_nothing_of_histories(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "history").mkdir()
    told = berth("backtest", "nothere.csv", cwd=tmp_path, env=environment).stderr
    assert told == "berth: nothere.csv: no such file\n"
