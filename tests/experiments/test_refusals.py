"""What an experiment refuses before it runs anything, word by word."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import SettingError
from berth.experiments.colocation.experiment import measure_colocation
from berth.experiments.compare import compare
from berth.experiments.genetic.utilisation import measure_utilisation
from berth.traces import read_trace


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "experiment utilisation synthetic:demo,foo=1",
            "'foo=1' in 'synthetic:demo,foo=1'; expected cluster=…, part=… or compress=…",
        ),
        (
            "experiment utilisation synthetic:demo,part=x",
            "'synthetic:demo,part=x': part and compress are numbers",
        ),
        (
            "experiment utilisation synthetic:demo,part=2",
            "'synthetic:demo,part=2': part is above 0 and up to 1, compress above 0; not 2 and 1",
        ),
        (
            "experiment colocation --interference none",
            "interference 'none' knows no profiles; expected time-sliced, mps or mig",
        ),
        (
            "compare synthetic:demo --borrow",
            "borrowing needs quotas, such as --quota vcA=64,vcB=32",
        ),
        (
            "compare synthetic:demo --map-at -1",
            "the cluster can be shown 0 or more hours after the first submission, not -1",
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
        lambda: measure_utilisation([], ("fifo",), seeds=(0,)),
        lambda: measure_colocation([], policies=("fifo",), seeds=(0,)),
        lambda: compare(trace, policies=[], seeds=2),
        lambda: compare(trace, policies=["fifo"], processes=0),
    ):
        with pytest.raises(SettingError) as refused:
            call()
        told.append(str(refused.value))
    assert told == [
        "the experiment needs at least one case, one policy and one seed",
        "the experiment needs at least one workload, one policy and one seed",
        "a comparison needs at least one policy and one seed, not 0 and 2",
        "a comparison runs on 1 or more processes, not 0",
    ]
