"""The animated picture of two policies, and oracles beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import berth
from berth.cluster import Cluster
from berth.engine import simulate
from berth.experiments.compare.filling import filling, two_to_show
from berth.experiments.compare.page import comparison_report
from berth.experiments.compare.table import text_table
from berth.model import Job, Node, Share
from berth.plots import policy_styles
from berth.policies import is_oracle
from berth.report.report import render
from berth.statistics import Mark, Run, answers, event_columns, lead, metrics_of, run_of, standings
from berth.statistics.run import FILMED_GPUS, film
from tests.experiments.compare.runs import NODES, made_runs

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [
        replace(run, oracle=is_oracle(run.policy))
        for run in made_runs(policies=("fifo+first-fit", "easy+fifo+best-fit", "sjf+best-fit"))
    ]


def test_a_frame_has_what_jobs_hold_and_asked_for_and_how_many_wait() -> None:
    jobs = [
        Job("a", 0, 10_000, gpus=1, share=Share(250)),
        Job("b", 0, 10_000, gpus=2),
        Job("c", 5000, 1000, gpus=2),
    ]
    nodes = (Node("n", 2),)
    columns = event_columns(simulate(jobs, Cluster(nodes), "fifo+first-fit"))
    shown = film(columns, nodes)
    assert shown is not None
    assert (shown.held_milli == [250, 0]).all()  # b waits for a, and c for b
    assert (shown.asked_milli == shown.held_milli).all()
    assert shown.waiting.tolist() == [1] * (len(shown.waiting) - 1) + [2]


def test_a_cluster_too_large_to_see_has_no_film() -> None:
    jobs = [Job("a", 0, 1000, gpus=1)]
    nodes = (Node("n", FILMED_GPUS + 1),)
    assert run_of(event_columns(simulate(jobs, Cluster(nodes), "fifo")), nodes, "fifo", 0).film is None


def test_the_picture_has_a_cell_for_each_gpu_of_both_policies(runs: list[Run]) -> None:
    pair = two_to_show(runs)
    assert pair is not None
    assert [run.policy for run in pair] == ["fifo+first-fit", "easy+fifo+best-fit"]
    picture = ElementTree.fromstring(filling(pair))
    cells = [each for each in picture.iter(f"{SVG}rect") if each.get("class") == "empty"]
    assert len(cells) == 2 * sum(node.gpus for node in NODES)
    titles = [each.text for each in picture.iter(f"{SVG}text")]
    assert {"fifo+first-fit", "easy+fifo+best-fit"} <= set(titles)
    assert "prefers-reduced-motion" in str(picture.find(f"{SVG}style").text)  # type: ignore[union-attr]


def test_what_is_held_and_asked_for_by_no_job_is_shown_apart(runs: list[Run]) -> None:
    (first, second) = two_to_show(runs) or pytest.fail("no pair")
    assert first.film is not None
    whole = np.where(first.film.held_milli > 0, 1000, 0).astype(np.int16)
    wasteful = replace(first, film=replace(first.film, held_milli=whole))
    assert "held, but not asked for" in filling((wasteful, second))
    assert "held, but not asked for" not in filling((first, second))


@pytest.mark.parametrize(
    ("policy", "knowledge", "oracle"),
    [
        ("sjf", "user", True),
        ("easy+sjf+best-fit", "user", True),
        ("sjf-expected", "oracle", True),
        ("sjf-expected", "user", False),
        ("learned?plans=0", "oracle", True),
        ("preempt+fifo+greedy", "oracle", True),
        ("tests.policies.true_times:LongestFirst", "user", True),
        ("easy+fifo+best-fit", "oracle", False),
    ],
)
def test_what_chooses_by_true_run_times_is_an_oracle(policy: str, knowledge: str, oracle: bool) -> None:
    assert is_oracle(policy, knowledge) is oracle


def test_all_policies_that_use_the_same_forecasts_are_oracles_alike() -> None:
    sharing = [
        "greedy",
        "tetris-sharing",
        "pairs",
        "learned",
        "random-sharing",
        "rule",
        "pair-packer",
        "rollouts",
    ]
    assert [name for name in sharing if not is_oracle(name)] == []
    assert [name for name in sharing if is_oracle(name, "user")] == []


def test_an_oracle_is_labelled_dashed_and_never_the_best(runs: list[Run]) -> None:
    for metric in metrics_of(run.summary for run in runs):
        assert standings(runs, metric)[2].mark is Mark.NONE
    assert "sjf+best-fit (oracle)" in text_table(runs)
    assert policy_styles(["fifo", "sjf"], {"sjf"})["sjf"].dash == "dash"
    assert not any(sentence.startswith("sjf") for sentence in answers(runs))
    alone = [run for run in runs if run.policy != "easy+fifo+best-fit"]
    assert answers(alone)[0].startswith("Under fifo+first-fit the mean wait is ")
    assert "(sjf+best-fit (oracle): " in answers(alone)[0]


def test_the_report_opens_with_the_picture_a_sentence_with_one_number_and_five_metrics() -> None:
    result = berth.compare("synthetic:demo", ["fifo", "easy+fifo+best-fit", "sjf"], seeds=5)
    said = lead(result.runs)
    assert said.startswith("Under fifo jobs wait ")
    page = render(comparison_report(result, ""))
    order = [
        page.index(text) for text in ('<svg class="film"', said, "<summary>The results in words", "<table")
    ]
    assert order == sorted(order)
    first = page[page.index("<table") : page.index("</table>")]
    assert first.count('<th scope="row"') == 5
    assert "sjf (oracle)" in first


def test_the_picture_of_the_readme_shows_what_the_demo_compares() -> None:
    picture = (ROOT / "docs" / "pictures" / "filling.svg").read_text()
    (policies,) = [
        words[words.index("--policies") + 1].split(",")
        for line in (ROOT / "Makefile").read_text().splitlines()
        if "--policies" in (words := line.split())
    ]
    assert f">{policies[0]}</text>" in picture
    assert f">{policies[1]}</text>" in picture
