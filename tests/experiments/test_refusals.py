"""What an experiment refuses before it runs anything, word by word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import SettingError, TraceError
from berth.experiments.compare import compare
from berth.history.importing.sacct import read_models
from berth.history.values.applications import read_rules
from berth.interference import make_speeds
from berth.model import Job, Node
from berth.policies.schemes.limits import read_limits
from berth.traces import read_trace


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "compare synthetic:demo --borrow",
            "borrowing needs quotas, such as --quota vcA=64,vcB=32",
        ),
    ],
)
def test_a_command_names_what_it_was_given_and_what_it_takes(words: str, told: str) -> None:
    with pytest.raises(SettingError) as refused:
        CliRunner().invoke(app, words.split(), catch_exceptions=False)
    assert str(refused.value) == told


def test_the_python_functions_refuse_what_leaves_nothing_to_run() -> None:
    trace = read_trace("synthetic:demo?jobs=20")
    told = []
    for call in (
        lambda: compare(trace, policies=[], seeds=2),
        lambda: compare(trace, policies=["fifo"], processes=0),
    ):
        with pytest.raises(SettingError) as refused:
            call()
        told.append(str(refused.value))
    assert told == [
        "a comparison needs at least one policy and one seed, not 0 and 2",
        "a comparison runs on 1 or more processes, not 0",
    ]


NODES = (Node("a", gpus=1), Node("b", gpus=1))
JOBS = tuple(Job(str(number), 0, 1000, gpus=1) for number in range(3))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: compare(JOBS, policies=["fifo"]),
            "the trace brings no cluster; say which with --cluster FILE or --cluster 10x8:V100",
        ),
        (
            lambda: compare(JOBS, policies=cast(Any, [print]), cluster=NODES),
            "a comparison takes names of policies, such as 'my_module:my_policy', and functions or classes at the top"
            " of a module, which can be named; not <built-in function print>",
        ),
    ],
)
def test_a_python_function_names_what_it_was_given_and_what_it_takes(
    call: Callable[[], object], told: str
) -> None:
    with pytest.raises(SettingError) as refused:
        call()
    assert str(refused.value) == told


@pytest.mark.parametrize(
    "words",
    [
        "compare synthetic:demo --outages",
        "compare synthetic:demo --reservations",
        "compare",
    ],
)
def test_a_file_that_is_not_there_is_named_with_the_cause_alone(tmp_path: Path, words: str) -> None:
    absent = str(tmp_path / "absent.csv")
    with pytest.raises(TraceError) as refused:
        CliRunner().invoke(app, [*words.split(), absent], catch_exceptions=False)
    assert str(refused.value) == f"{absent}: no such file"


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (make_speeds, "{file} cannot be read: no such file; make one with `berth interference fit`"),
        (lambda file: read_limits(Path(file)), "{file} cannot be read as limits: no such file"),
        (
            lambda file: read_rules(Path(file)),
            "{file} cannot be read as rules for applications: no such file",
        ),
        (lambda file: read_models(Path(file)), "{file} cannot be read as a list of nodes: no such file"),
    ],
)
def test_a_file_of_settings_that_is_not_there_is_named_once(
    tmp_path: Path, read: Callable[[str], object], told: str
) -> None:
    file = str(tmp_path / "absent.json")
    with pytest.raises(SettingError) as refused:
        read(file)
    assert str(refused.value) == told.format(file=file)


def test_a_period_of_a_history_without_jobs_is_refused(tmp_path: Path) -> None:
    runner = CliRunner()
    records, history = str(tmp_path / "made.parquet"), str(tmp_path / "history")
    made = ["simulate", "synthetic:demo?jobs=5", "--records", records, "--quiet"]
    for words in (made[:-1], ["import", "records", records, "--history", history]):
        assert runner.invoke(app, words).exit_code == 0
    words = [
        "compare",
        "--from-history",
        "--since",
        "2999-01-01",
        "--cluster",
        "1x1:V100",
        "--history",
        history,
    ]
    with pytest.raises(SettingError) as refused:
        runner.invoke(app, words, catch_exceptions=False)
    assert str(refused.value) == (
        "no job of the history ran in this period, so there is nothing to replay: its jobs that ran are of"
        " 1970-01-01 to 1970-01-01. Choose a period within these with --since and --until"
    )


def test_two_seeds_are_named_too_few_before_the_run() -> None:
    words = "compare synthetic:demo?jobs=20 --policies fifo --seeds 2 --borrow"  # refused after the warning
    done = CliRunner().invoke(app, words.split())
    assert done.stderr.startswith(
        "berth: two seeds give wide intervals that hardly tell policies apart; use --seeds 5 or more\n"
    )


def test_a_policy_that_starts_nothing_ends_with_a_warning_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "idle_of_a_test.py").write_text("def never(queue, cluster, now_ms):\n    return []\n")
    monkeypatch.syspath_prepend(tmp_path)
    done = CliRunner().invoke(
        app, ["compare", "synthetic:demo?jobs=20", "--policies", "idle_of_a_test:never"]
    )
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (
        1,
        "berth: warning: idle_of_a_test:never, seed 0, finished none of 20 jobs; does the policy yield placements?",
    )


def test_outages_are_of_a_file_or_at_a_rate(tmp_path: Path) -> None:
    file = tmp_path / "outages.csv"
    file.write_text(f"node,down_s,up_s\n{read_trace('synthetic:demo?jobs=20').nodes[0].name},1,2\n")
    words = ["compare", "synthetic:demo?jobs=20", "--mtbf", "100", "--mttr", "1", "--outages", str(file)]
    with pytest.raises(SettingError) as refused:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert str(refused.value) == "outages come from a file or at a rate, not both"
