"""The experiment on utilisation: what it measures, over which time, and what its commands print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import SettingError
from berth.experiments.inflate import inflate
from berth.experiments.utilisation import Case, case_of, margins, measure_utilisation
from berth.model import GpuModel, Job, Node, Share

POLICIES = ("round-robin", "first-fit", "genetic-paper", "genetic")


@pytest.mark.parametrize(
    ("text", "case"),
    [
        ("jobs.csv", Case("jobs.csv")),
        ("jobs.csv,part=0.1,compress=6", Case("jobs.csv", None, 0.1, 6)),
        ("jobs.csv,cluster=2x8:V100,4x2:T4,part=0.5", Case("jobs.csv", "2x8:V100,4x2:T4", 0.5)),
    ],
)
def test_a_case_is_read_as_it_is_written(text: str, case: Case) -> None:
    assert case_of(text) == case


@pytest.mark.parametrize(
    "text", ["jobs.csv,part=0", "jobs.csv,part=2", "jobs.csv,size=3", "jobs.csv,compress=-1"]
)
def test_a_case_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"expected|above 0"):
        case_of(text)


def test_everything_is_finished_under_every_policy_and_a_seed_gives_the_same_again() -> None:
    case = case_of("synthetic:pai-like?jobs=150&load=8,part=0.01")
    first, second = (measure_utilisation([case], POLICIES, seeds=(0, 1)) for _ in range(2))
    assert [(one.policy, one.seed, one.finished) for one in first] == [
        (policy, seed, 150 - seed)  # one job of the second seed may run on no node that was drawn
        for seed in (0, 1)
        for policy in POLICIES
    ]
    assert [one.utilisation_pct for one in first] == [one.utilisation_pct for one in second]
    assert all(0 < one.utilisation_pct <= 100 for one in first)
    assert len({(one.seed, one.span_ms) for one in first}) == 2  # the same time for every policy of a seed
    assert len({(one.seed, round(one.run_time_s, 6)) for one in first}) == 2  # nobody runs faster for it
    found = margins(first, case.name)
    assert {(one.policy, one.over, one.paper_pct) for one in found if one.policy == "genetic"} == {
        ("genetic", "round-robin", 12.8),
        ("genetic", "first-fit", 6.5),
        ("genetic", "genetic-paper", None),
    }
    assert all(one.points.mean <= one.most_points for one in found)


def test_a_batch_is_decided_on_together_and_what_is_refused_is_gone() -> None:
    nodes = [Node("n", 1, GpuModel("T4"))]
    small, large = Job("small", 0, 1, share=Share(400)), Job("large", 0, 1, share=Share(700))
    alone = inflate(nodes, [small, large], "genetic", seed=1)
    together = inflate(nodes, [small, large], "genetic", seed=1, batch=2)
    assert together.curve.allocation_pct[130] >= alone.curve.allocation_pct[130]
    assert together.curve.allocation_pct.max() == 70.0


@pytest.mark.parametrize("batch", [0, 501])
def test_a_batch_out_of_range_is_refused(batch: int) -> None:
    with pytest.raises(SettingError, match="expected from 1 to 500"):
        inflate([Node("n", 1)], [Job("j", 0, 1)], "fgd", seed=1, batch=batch)


def test_the_commands_print_json_alone_and_write_a_report(tmp_path: Path) -> None:
    pytest.importorskip("highspy")
    run = CliRunner().invoke
    arguments = ["experiment", "utilisation", "synthetic:pai-like?jobs=60&load=8,part=0.01", "--seeds", "2"]
    answer = run(app, [*arguments, "--policies", "first-fit,genetic", "--out", str(tmp_path / "u"), "--json"])
    assert answer.exit_code == 0, answer.output
    assert [(row["policy"], row["seed"]) for row in json.loads(answer.stdout)["runs"]] == [
        ("first-fit", 0), ("genetic", 0), ("first-fit", 1), ("genetic", 1),
    ]  # fmt: skip
    assert "Jobs scheduled so far" in (tmp_path / "u/report.html").read_text()
    arguments = ["experiment", "optimality", "--count", "2", "--instances", "8", "--machines", "3"]
    answer = run(app, [*arguments, "--policies", "fgd,genetic", "--out", str(tmp_path / "o"), "--json"])
    assert answer.exit_code == 0, answer.output
    assert list(json.loads(answer.stdout)["policies"]) == ["fgd", "genetic"]
    assert "Generations" in (tmp_path / "o/report.html").read_text()


@pytest.mark.slow
def test_in_batches_of_500_genetic_is_above_fgds_published_allocation(real_data) -> None:  # type: ignore[no-untyped-def]
    from berth.experiments.inflate import read_arrivals
    from berth.traces import read, read_nodes

    nodes = read_nodes(real_data("openb_v2023/openb_node_list_gpu_node.csv.gz"))
    pods = list(read(real_data("openb_v2023/openb_pod_list_default.csv.gz"), nodes=nodes, file_order=True))
    arrivals = read_arrivals(real_data("fgd_orders/openb_pod_list_default.npz"), 42)
    found = inflate(nodes, pods, "genetic?generations=5", seed=42, arrivals=arrivals, batch=500)
    assert found.curve.allocation_pct[130] > 95.39
