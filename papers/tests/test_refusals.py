"""What an experiment of the papers refuses before it runs anything, word by word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import SettingError, TraceError
from berth.model import Job, Node
from berth_papers.colocation.experiment import measure_colocation
from berth_papers.colocation.matrix import worlds_of
from berth_papers.genetic.batch_file import read_batches
from berth_papers.genetic.cases import case_of
from berth_papers.genetic.optimality import measure_optimality
from berth_papers.genetic.utilisation import measure_utilisation
from berth_papers.inflate import inflate
from berth_papers.inflate.inflation import Arrivals
from berth_papers.pai import pai


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
    ],
)
def test_a_command_names_what_it_was_given_and_what_it_takes(words: str, told: str) -> None:
    with pytest.raises(SettingError) as refused:
        CliRunner().invoke(app, words.split(), catch_exceptions=False)
    assert str(refused.value) == told


def test_the_python_functions_refuse_what_leaves_nothing_to_run() -> None:
    told = []
    for call in (
        lambda: measure_utilisation([], ("fifo",), seeds=(0,)),
        lambda: measure_colocation([], policies=("fifo",), seeds=(0,)),
    ):
        with pytest.raises(SettingError) as refused:
            call()
        told.append(str(refused.value))
    assert told == [
        "the experiment needs at least one case, one policy and one seed",
        "the experiment needs at least one workload, one policy and one seed",
    ]


NODES = (Node("a", gpus=1), Node("b", gpus=1))


JOBS = tuple(Job(str(number), 0, 1000, gpus=1) for number in range(3))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: inflated(batch=0), "a batch of 0 jobs; expected from 1 to 500"),
        (lambda: inflated(batch=501), "a batch of 501 jobs; expected from 1 to 500"),
        (
            lambda: inflate([Node("a")], JOBS, "fgd", seed=0),
            "an inflation needs GPU load to arrive on GPUs: the cluster has no GPUs",
        ),
        (
            lambda: inflate(NODES, [Job("0", 0, 1000, gpus=0)], "fgd", seed=0),
            "an inflation needs GPU load to arrive on GPUs: the workload asks for no GPUs",
        ),
        (
            lambda: inflated(arrivals=Arrivals(np.array([7]))),
            "the order names row 7; the workload has rows 0…2",
        ),
        (
            lambda: inflated(arrivals=Arrivals(np.array([0]), np.arange(3))),
            "the order ranks 3 nodes; the cluster has 2",
        ),
        (
            lambda: inflated(arrivals=Arrivals(np.array([1]), base=4)),
            "the order inflates a workload after 4 different rows; this one has 3: give the order of this workload",
        ),
        (
            lambda: pai("rows.csv", jobs=0, gpus=8, rate=3),
            "0 jobs, 8 GPUs, 3 a minute; expected at least one of each",
        ),
        (
            lambda: worlds_of((), (), (), "20", 11),
            "arrivals are 11 times what the GPUs do; expected from 0 to 10",
        ),
        (
            lambda: measure_optimality([], ["fgd"]),
            "the experiment needs at least 1 batch and 1 policy, not 0 and 1",
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
        "experiment inflate --nodes 1x1 --pods synthetic:demo --order",
        "experiment optimality --batches",
        "experiment pai",
    ],
)
def test_a_file_that_is_not_there_is_named_with_the_cause_alone(tmp_path: Path, words: str) -> None:
    absent = str(tmp_path / "absent.csv")
    with pytest.raises(TraceError) as refused:
        CliRunner().invoke(app, [*words.split(), absent], catch_exceptions=False)
    assert str(refused.value) == f"{absent}: no such file"


def inflated(**values: Any) -> object:
    return inflate(NODES, JOBS, "fgd", seed=0, **values)


TABLE = "id,submit_ms,work_ms\n"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("1,0,60000\n", "the trace '{file}' brings no cluster; say which: {file},cluster=10x8:V100"),
        ("", "the trace '{file}' has no jobs; expected at least 1"),
    ],
)
def test_a_case_of_utilisation_needs_a_cluster_and_jobs(tmp_path: Path, rows: str, told: str) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(TABLE + rows)
    case = str(file) if rows else f"{file},cluster=1x1"
    with pytest.raises(SettingError) as refused:
        case_of(case).load(0)
    assert str(refused.value) == told.format(file=file)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nan?", "; expected a readable JSON file of batches (Expecting value: line 1 column 1 (char 0))"),
        ("3", '; expected a batch, or a list of them under "batches"'),
        (
            '{"machines": 1}',
            ', column \'batches[0]\'; expected an object with the lists "machines" and "instances"',
        ),
    ],
)
def test_a_file_of_batches_that_is_none_is_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "batches.json"
    file.write_text(text)
    with pytest.raises(TraceError) as refused:
        read_batches(file)
    assert str(refused.value) == f"{file}{told}"
