"""A sweep is many comparisons as one table; a wrong plan is refused before anything runs."""

from __future__ import annotations

import inspect
import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.testing import CliRunner

import berth
from berth.cli.app import app
from berth.errors import SettingError, SimulationError
from berth.experiments.compare import compare
from berth.experiments.compare.parallel import run_each
from berth.experiments.sweep import read_plan, sweep
from berth.experiments.sweep.page import page_of
from berth.experiments.sweep.table import _cell, by_case, grid
from berth.model import Job, Node
from berth.policies.schemes.limits import Limit
from berth.statistics import EventColumns, Interval
from tests.policies.schemes.limit_files import write_limits

PLAN = """
trace = "synthetic:demo?jobs=40"
cluster = "6x4:V100"
policies = ["fifo+first-fit", "easy+fifo+best-fit"]
seeds = 2
loads = [1, 2]
sizes = [0.5, 1]
metrics = ["tests.experiments.sweep.test_sweep:longest_wait_s"]

[conditions.calm]

[conditions.failing]
mtbf_h = 10
mttr_h = 1
checkpoint_min = 30
checkpoint_write_s = 5
restart_s = 60
"""
OWN = "tests.experiments.sweep.test_sweep:longest_wait_s"


def longest_wait_s(events: EventColumns, nodes: Sequence[Node], jobs: Sequence[Job]) -> float | None:
    tries = events.attempts
    return (tries.start_ms - tries.queued_ms).max() / 1000 if len(tries.job) else None


def nothing(events: EventColumns, nodes: Sequence[Node], jobs: Sequence[Job]) -> None:
    return None


def broken(events: EventColumns, nodes: Sequence[Node], jobs: Sequence[Job]) -> float:
    raise ValueError("no such column")


def small(**changed: Any) -> dict[str, Any]:
    return {"trace": "synthetic:demo?jobs=20&seed=1", "policies": ["fifo+first-fit"], **changed}


def test_every_run_is_the_one_that_compare_gives() -> None:
    found = sweep(tomllib.loads(PLAN))
    assert len(found.runs) == 2 * 2 * 2 * 2 * 2
    assert list(by_case(found.runs)) == found.plan.cases
    for case in found.plan.cases:
        alike = compare(
            "synthetic:demo?jobs=40",
            list(found.plan.policies),
            cluster="6x4:V100" if case.size == 1 else "3x4:V100",
            seeds=2,
            conditions=found.plan.conditions[case.conditions],
            compress=case.load,
        )
        mine = [
            (run.policy, run.seed, replace(run.summary, own={})) for run in found.runs if run.case == case
        ]
        assert mine == [(run.policy, run.seed, run.summary) for run in alike.runs]


def test_a_data_frame_has_a_row_per_run_and_metric_with_what_it_was_under() -> None:
    found = berth.sweep(small(loads=[1, 3], metrics=[OWN]))
    own = [row for row in found.rows() if row["metric"] == OWN]
    run = found.runs[0]
    assert own[0] == {
        "load": 1.0,
        "size": 1.0,
        "nodes": run.nodes,
        "gpus": run.gpus,
        "conditions": "as the trace says",
        "policy": "fifo+first-fit",
        "oracle": False,
        "seed": 0,
        "metric": OWN,
        "unit": "",
        "value": run.summary.own[OWN],
        "better": "",
    }
    assert [row["load"] for row in own] == [1.0, 3.0]
    assert len(found.rows()) == len(found.runs) * len({row["metric"] for row in found.rows()})


def test_a_kept_run_is_not_run_again_and_a_plan_that_grows_runs_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def counted(tasks: Any, *more: Any) -> Any:
        ran.append(len(tasks))
        return run_each(tasks, *more)

    monkeypatch.setattr("berth.experiments.compare.comparison.run_each", counted)
    plan = small(loads=[1, 2], metrics=[OWN])
    first = sweep(plan, keep=tmp_path)
    again = sweep(plan, keep=tmp_path)
    assert again.to_dict() == first.to_dict()
    more = sweep(plan | {"loads": [1, 2, 4]}, keep=tmp_path)
    assert [run.case.load for run in more.runs] == [1, 2, 4]
    assert ran == [2, 1]
    sweep(plan | {"metrics": [OWN, OWN.replace("longest_wait_s", "nothing")]}, keep=tmp_path)
    assert ran == [2, 1, 2], "kept runs lack a metric that is new"


def test_outages_at_a_rate_differ_by_seed_also_where_the_policy_does_not_draw() -> None:
    plan = small(seeds=3, conditions={"calm": {}, "failing": {"mtbf_h": 0.5, "mttr_h": 0.2}})
    runs = sweep(plan).runs
    assert [(run.case.conditions, run.seed) for run in runs] == [
        ("calm", 0),
        ("failing", 0),
        ("failing", 1),
        ("failing", 2),
    ]
    assert len({run.summary.makespan_s for run in runs}) == 4


def test_limits_from_a_file_hold_under_the_conditions_that_name_it(tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    write_limits(file, Limit("user", running=1))
    runs = sweep(small(conditions={"free": {}, "limited": {"limits": str(file)}})).runs
    free, limited = (run.summary.waiting_time_s.mean for run in runs)
    assert free < limited


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"polices": []}, "no key polices; there are trace, cluster,"),
        ({"policies": ["fofi"]}, "policies: no policy 'fofi' (did you mean 'fifo'?); there are"),
        ({"policies": "fifo"}, "policies: 'fifo' is no list; expected one such as"),
        ({"policies": []}, "policies: no policy; expected one or more"),
        ({"trace": "synthetic:nothing"}, "trace: "),
        ({"cluster": "many"}, "cluster: "),
        ({"seeds": 0}, "seeds: 0; expected how many, 1 or more, or a list of whole numbers"),
        ({"seeds": [0.5]}, "seeds: [0.5]; expected how many"),
        ({"loads": [1, 0]}, "loads: [1, 0]; expected numbers above 0"),
        ({"sizes": ["big"]}, "sizes: 'big' is no number"),
        ({"skip_bad": "yes"}, "skip_bad: 'yes'; expected true or false"),
        ({"metrics": ["longest"]}, "metrics: 'longest' is no metric; expected module:function"),
        (
            {"metrics": ["tests.experiments.sweep.test_sweep:shortest"]},
            "metrics: no metric 'tests.experiments.sweep.test_sweep:shortest'",
        ),
        ({"conditions": {"a": 3}}, "conditions.a is 3; expected a table of knowledge, interference,"),
        ({"conditions": {}}, "conditions is {}; expected tables"),
        ({"conditions": {"a": {"mtbf": 3}}}, "no key conditions.a.mtbf; there are knowledge, interference,"),
        ({"conditions": {"a": {"mttr_h": 3}}}, "conditions.a: mttr_h is the repair time"),
        ({"conditions": {"a": {"checkpoint_min": "1h"}}}, "conditions.a.checkpoint_min: '1h' is no number"),
        ({"conditions": {"a": {"knowledge": "none"}}}, "conditions.a: "),
        ({"conditions": {"a": {"interference": "none at all"}}}, "conditions.a: "),
        ({"conditions": {"a": {"outages": "missing.csv"}}}, "conditions.a: "),
        (
            {"conditions": {"a": {"limits": "missing.json"}}},
            "conditions.a: missing.json cannot be read as limits",
        ),
        ({"conditions": {"a": {"borrow": True}}}, "conditions.a: borrowing needs quotas"),
        (
            {"conditions": {"a": {"quotas": {"vc": "many"}}}},
            "conditions.a.quotas: {'vc': 'many'}; expected GPUs",
        ),
    ],
)
def test_a_wrong_plan_is_refused_with_its_key_before_anything_runs(
    changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingError) as refused:
        read_plan(small(**changed))
    assert str(refused.value).startswith(f"the plan: {said}")


def test_the_metric_in_the_docs_is_the_one_tested_here() -> None:
    shown = (Path(__file__).parents[3] / "docs/sweeps.md").read_text(encoding="utf-8")
    body = inspect.getsource(longest_wait_s).partition(":\n")[2]
    assert f"def longest_wait_s(events, nodes, jobs):\n{body}" in shown


def test_what_is_refused_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    with pytest.raises(SettingError, match="no such file or directory; expected a plan in TOML"):
        read_plan(path)
    path.write_text("trace = ", encoding="utf-8")
    with pytest.raises(SettingError, match=f"{path} cannot be read as a plan: "):
        read_plan(path)
    path.write_text('trace = "synthetic:demo"', encoding="utf-8")
    with pytest.raises(SettingError, match=f"{path}: policies is missing; a plan needs a trace and policies"):
        read_plan(path)


def test_a_metric_that_fails_is_named_and_one_without_an_answer_is_undefined() -> None:
    name = OWN.replace("longest_wait_s", "broken")
    with pytest.raises(SimulationError, match=f"the metric '{name}' fails: ValueError: no such column"):
        sweep(small(metrics=[name]))
    name = OWN.replace("longest_wait_s", "nothing")
    found = sweep(small(metrics=[name]))
    assert math.isnan(found.runs[0].summary.own[name])
    assert [row["value"] for row in found.rows() if row["metric"] == name] == [None]


def test_a_smaller_cluster_keeps_the_outages_of_the_nodes_that_stay(tmp_path: Path) -> None:
    lost = tmp_path / "lost.csv"
    nodes = read_plan(small(cluster="4x4:V100")).nodes
    rows = "".join(f"{node.name},10,20\n" for node in nodes)
    lost.write_text("node,down_s,up_s\n" + rows, encoding="utf-8")
    plan = read_plan(small(cluster="4x4:V100", sizes=[0.5, 1], conditions={"lost": {"outages": str(lost)}}))
    assert [(len(task.nodes), len(task.conditions.outages)) for _, task in plan.tasks()] == [(2, 2), (4, 4)]


@pytest.mark.slow
def test_the_page_has_one_panel_per_case_of_the_other_axes_with_the_same_range() -> None:
    found = sweep(tomllib.loads(PLAN))
    page = page_of(found, "berth sweep plan.toml")
    waits = next(chapter for chapter in page.chapters if chapter.title == "Mean wait")
    said = ["size 0.5, calm", "size 0.5, failing", "size 1, calm", "size 1, failing"]
    assert [text for text, _ in waits.figures] == [f"Mean wait over load, {each}" for each in said]
    assert len({tuple(figure.layout.yaxis.range) for _, figure in waits.figures}) == 1
    for _, figure in waits.figures:
        assert [list(line.x) for line in figure.data] == [[1.0, 2.0]] * 2
    table = page.chapters[0]
    assert table.headings[:4] == ["load", "size", "conditions", "policy"]
    assert len(table.rows) == len(found.plan.cases) * 2
    assert table.row_names == 4  # they stand on the left
    halves = [cell.removesuffix(" *").split(" ±") for row in table.rows for cell in row[4:]]
    assert {len(mean.partition(".")[2]) - len(half.partition(".")[2]) for mean, half in halves} == {0}


@pytest.mark.parametrize(
    ("mean", "half", "shown"),
    [
        (999.7, 12.3, "1,000 ±12"),
        (999.4, 12.3, "999 ±12"),
        (9.996, 0.12, "10.0 ±0.1"),
        (1.23e-05, 3.4e-06, "0.0000123 ±0.0000034"),
        (-0.05, 0.01, "-0.0500 ±0.0100"),
        (12_345.6, 78.9, "12,346 ±79"),
        (0.0, 0.0, "0.00 ±0.00"),
        (math.inf, math.nan, "–"),
        (math.nan, math.nan, "–"),
    ],
)
def test_a_cell_has_three_digits_and_its_interval_as_many_decimals(
    mean: float, half: float, shown: str
) -> None:
    assert _cell(Interval(mean, mean - half, mean + half, 3), 1.0) == shown
    assert _cell(Interval(mean, math.nan, math.nan, 1), 1.0) == shown.partition(" ")[0]


def test_sizes_that_are_the_same_cluster_are_named() -> None:
    plan = tomllib.loads(PLAN) | {"cluster": "3x4:V100", "sizes": [0.9, 1, 2]}
    assert sweep(plan).answers[0] == "Sizes 0.9 and 1 are the same cluster of 3 nodes."


def test_the_best_policy_of_a_case_has_its_best_mean_over_seeds() -> None:
    found = sweep(tomllib.loads(PLAN))
    headings, rows = grid(found.runs)
    column = next(at for at, heading in enumerate(headings) if heading.startswith("Mean wait"))
    for number, of_case in enumerate(by_case(found.runs).values()):
        means = {
            policy: fmean(run.summary.waiting_time_s.mean for run in of_case if run.policy == policy)
            for policy in found.plan.policies
        }
        best = [min(means, key=means.__getitem__)] if len(set(means.values())) == 2 else []
        mine = rows[2 * number : 2 * number + 2]
        assert [row[3] for row in mine if row[column].endswith(" *")] == best


def test_the_command_writes_a_page_and_prints_the_rows(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'trace = "synthetic:demo?jobs=20&seed=1"\npolicies = ["fifo+first-fit"]\nloads = [1, 2]\n',
        encoding="utf-8",
    )
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["sweep", str(plan), "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told == json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert (told["runs"], told["loads"]) == (2, [1.0, 2.0])
    assert len(list((out / "runs").glob("*.parquet"))) == 2
    assert "2 simulations" in (out / "report.html").read_text(encoding="utf-8")
    table = CliRunner().invoke(app, ["sweep", str(plan), "--out", str(out)])
    assert "synthetic:demo?jobs=20&seed=1: 2 simulations of 20 jobs, 2 cases" in table.stdout


def test_parts_join_to_what_one_command_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small(loads=[1, 2, 3], policies=["fifo+first-fit", "sjf+best-fit"], metrics=[OWN])
    whole = sweep(plan)
    parts = [sweep(plan, keep=tmp_path, part=(number, 4)) for number in (4, 1, 3, 2)]
    assert [len(each.runs) for each in parts] == [1, 2, 1, 2]
    monkeypatch.setattr(
        "berth.experiments.compare.comparison.run_each", None
    )  # would fail if anything ran again
    assert sweep(plan, keep=tmp_path).to_dict() == whole.to_dict()
    assert sweep(plan, keep=tmp_path, part=(9, 9)).runs == ()


def test_a_part_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no part 0 of 3; expected 1 to 3"):
        sweep(small(), keep=tmp_path, part=(0, 3))
    with pytest.raises(SettingError, match="is lost unless it is kept"):
        sweep(small(), part=(1, 3))


def test_one_part_by_the_command_makes_no_table(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'trace = "synthetic:demo?jobs=20&seed=1"\npolicies = ["fifo+first-fit"]\nloads = [1, 2]\n',
        encoding="utf-8",
    )
    done = CliRunner().invoke(app, ["sweep", str(plan), "--out", str(tmp_path / "out"), "--part", "2/2"])
    said = f"part 2/2: 1 run kept in {tmp_path / 'out'}; the same command without --part makes the table\n"
    assert (done.exit_code, done.stdout) == (0, said)
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["runs"]
    bad = CliRunner().invoke(app, ["sweep", str(plan), "--part", "second"])
    assert str(bad.exception) == "--part is 'second'; expected I/N, such as 3/10"
