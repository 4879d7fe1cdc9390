"""The experiment on utilisation: what it measures, over which time, and what its commands print."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from berth.cli.app import app
from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import SettingError
from berth.experiments.compare import sweep
from berth.experiments.compare.kept_file import read_kept, write_kept
from berth.model import GpuModel, Job, Node, Share
from berth.policies.schemes.limits import Limit
from berth.statistics import event_columns
from berth_papers.bounds import most_held_pct
from berth_papers.genetic import utilisation_run
from berth_papers.genetic.cases import Case, case_of
from berth_papers.genetic.chapters import utilisation_answers, utilisation_chapters
from berth_papers.genetic.utilisation import (
    Outcome,
    margins,
    measure_utilisation,
    utilisation_dict,
)
from berth_papers.genetic.utilisation_run import KeptUses, UseTask, _digest, _waits
from berth_papers.inflate import inflate
from tests.examples import examples
from tests.experiments.compare.held import HELD
from tests.experiments.compare.test_continued import BERTH, is_continued
from tests.policies.schemes.limit_files import write_limits

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
    assert case_of(f"some/folder/{text}").name == text


def test_nothing_is_run_twice_and_nothing_at_all_is_refused() -> None:
    case = case_of("synthetic:demo?jobs=20")
    found = measure_utilisation([case, case], ("first-fit", "fgd", "first-fit"), seeds=(0, 0))
    assert [(one.policy, one.seed) for one in found] == [("first-fit", 0), ("fgd", 0)]
    with pytest.raises(SettingError, match="at least one case, one policy and one seed"):
        measure_utilisation([case], (), seeds=(0,))
    with pytest.raises(SettingError, match="1 or more processes, not 0"):
        measure_utilisation([case], ("fgd",), processes=0)


@pytest.mark.parametrize(
    "text", ["jobs.csv,part=0", "jobs.csv,part=2", "jobs.csv,size=3", "jobs.csv,compress=-1"]
)
def test_a_case_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"expected|above 0"):
        case_of(text)


@pytest.mark.slow
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


@pytest.mark.slow
def test_only_missing_runs_are_run_and_kept_ones_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, int]] = []
    original = sweep.simulate

    def counted(jobs: list[Job], cluster: object, policy: object, **more: object) -> object:
        ran.append((type(policy).__name__, len(jobs)))
        return original(jobs, cluster, policy, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(sweep, "simulate", counted)
    cases = [case_of("synthetic:pai-like?jobs=60&load=8,part=0.01"), case_of("synthetic:demo?jobs=30")]
    first = measure_utilisation(cases, ("first-fit", "genetic"), seeds=(0, 1), keep=tmp_path)
    assert ran == [("Ordered", 60), ("Genetic", 60)] * 2 + [("Ordered", 30), ("Genetic", 30)] * 2
    ran.clear()
    next((tmp_path / "runs").glob("genetic.*.1.parquet")).write_bytes(b"damaged")
    again = measure_utilisation(cases, ("first-fit", "genetic", "fgd"), seeds=(0, 1), keep=tmp_path)
    assert sorted(kind for kind, _ in ran) == ["Genetic", *["Ordered"] * 4]
    told = [(one.case, one.policy, one.seed, one.completion_s, one.after_pct.tolist()) for one in first]
    assert told == [
        (one.case, one.policy, one.seed, one.completion_s, one.after_pct.tolist())
        for one in again
        if one.policy != "fgd"
    ]
    ran.clear()
    measure_utilisation([replace(cases[1], compress=2)], ("first-fit",), seeds=(0,), keep=tmp_path)
    assert len(ran) == 1


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_commands_print_json_alone_and_write_a_report(tmp_path: Path) -> None:
    pytest.importorskip("highspy")
    run = CliRunner().invoke
    arguments = ["experiment", "utilisation", "synthetic:pai-like?jobs=60&load=8,part=0.01", "--seeds", "2"]
    answer = run(app, [*arguments, "--policies", "first-fit,genetic", "--out", str(tmp_path / "u"), "--json"])
    assert answer.exit_code == 0, answer.output
    assert [(row["policy"], row["seed"]) for row in json.loads(answer.stdout)["runs"]] == [
        ("first-fit", 0),
        ("genetic", 0),
        ("first-fit", 1),
        ("genetic", 1),
    ]
    assert "Jobs scheduled so far" in (tmp_path / "u/report.html").read_text()
    arguments = ["experiment", "optimality", "--count", "2", "--instances", "8", "--machines", "3"]
    answer = run(app, [*arguments, "--policies", "fgd,genetic", "--out", str(tmp_path / "o"), "--json"])
    assert answer.exit_code == 0, answer.output
    assert list(json.loads(answer.stdout)["policies"]) == ["fgd", "genetic"]
    assert "Generations" in (tmp_path / "o/report.html").read_text()


@pytest.mark.slow
def test_an_interrupted_experiment_is_continued(tmp_path: Path) -> None:
    command = [str(BERTH), "experiment", "utilisation", "synthetic:pai-like?jobs=80&load=20,part=0.03"]
    command += ["--policies", f"first-fit,{HELD}", "--seeds", "4", "--out", str(tmp_path), "--json"]
    is_continued(command, tmp_path)


@pytest.mark.parametrize(
    ("works", "most"),
    [
        ([("T4", 10_000, 0), ("T4", 10_000, 0)], 50.0),  # both GPUs of the model, all the time
        ([("T4", 10_000, 0)] * 9, 50.0),  # nor more than there is of it
        ([("T4", 5_000, 0)], 12.5),  # for as long as it works
        ([("T4", 10_000, 6_000)], 10.0),  # and from when it has come
        ([("T4", 10_000, 0)] * 9 + [("", 10_000, 0)], 75.0),  # who may run anywhere goes to the others
        ([("", 10_000, 0)] * 9, 100.0),
    ],
)
def test_what_any_policy_could_hold_at_most(works: list[tuple[str, int, int]], most: float) -> None:
    nodes = [Node("t", 2, GpuModel("T4")), Node("v", 2, GpuModel("V100"))]
    jobs = [
        Job(f"j{at}", submit, work, models=(model,) if model else ())
        for at, (model, work, submit) in enumerate(works)
    ]
    assert most_held_pct(jobs, nodes, 0, 10_000) == pytest.approx(most)


@pytest.mark.slow
@given(st.integers(0, 10_000), st.sampled_from(["first-fit", "genetic", "fgd"]))
@settings(max_examples=examples(25), deadline=None)
def test_no_policy_holds_more_than_the_bound(seed: int, policy: str) -> None:
    draw = random.Random(seed)
    nodes = [Node("t", draw.randint(1, 3), GpuModel("T4")), Node("v", draw.randint(1, 3), GpuModel("V100"))]
    arrivals = sorted(draw.randint(0, 9_000) for _ in range(draw.randint(1, 20)))
    jobs = [
        Job(
            f"j{at}",
            submit,
            draw.randint(1, 8_000),
            share=Share(draw.choice([200, 500, 1000])),
            models=draw.choice([(), ("T4",), ("V100",)]),
        )
        for at, submit in enumerate(arrivals)
    ]
    columns = event_columns(simulate(jobs, Cluster(nodes), policy))
    begin, end = sorted(draw.sample(range(12_000), 2))
    held = np.zeros(end, dtype=np.int64)
    tries = columns.attempts
    for start, stop, milli in zip(tries.start_ms, tries.end_ms, tries.gpus * tries.milli, strict=True):
        held[start:stop] += milli
    share = 100 * held[begin:].mean() / (1000 * sum(node.gpus for node in nodes))
    assert share <= most_held_pct(jobs, nodes, begin, end) + 1e-9


@pytest.mark.slow
def test_in_batches_of_500_genetic_is_above_fgds_published_allocation(real_data) -> None:  # type: ignore[no-untyped-def]
    from berth.traces import read, read_nodes
    from berth_papers.inflate import read_arrivals

    nodes = read_nodes(real_data("openb_v2023/openb_node_list_gpu_node.csv.gz"))
    pods = list(read(real_data("openb_v2023/openb_pod_list_default.csv.gz"), nodes=nodes, file_order=True))
    arrivals = read_arrivals(real_data("fgd_orders/openb_pod_list_default.npz"), 42)
    found = inflate(nodes, pods, "genetic?generations=5", seed=42, arrivals=arrivals, batch=500)
    assert found.curve.allocation_pct[130] > 95.39


def test_the_most_that_a_margin_could_be_is_told_of_what_the_other_policy_holds() -> None:
    def outcome(policy: str, held_pct: float) -> Outcome:
        return Outcome(
            "case", policy, 0, held_pct, 1.0, 1.0, 1, np.array([1]), np.array([held_pct]), (0, 1), 80.0
        )

    told = utilisation_chapters([outcome("genetic", 60.0), outcome("first-fit", 40.0)])[-1]
    assert told.rows == [("genetic", "first-fit", "20.00", "50.00", "6.5 %", "40.00", "100.0")]


def test_the_answers_say_what_the_search_adds_to_passing_over() -> None:
    def outcome(policy: str, held_pct: float) -> Outcome:
        return Outcome(
            "case", policy, 0, held_pct, 1.0, 1.0, 1, np.array([1]), np.array([held_pct]), (0, 1), 90.0
        )

    held = {"first-fit": 40.0, "passing+first-fit": 62.5, "passing+tetris": 50.0, "genetic": 60.0}
    answers = utilisation_answers([outcome(*one) for one in held.items()])
    assert answers[1:] == (
        "Beside passing+first-fit, the best of those that pass over jobs without a search, genetic is at -2.50"
        " points.",
    )
    assert len(utilisation_answers([outcome("first-fit", 40.0), outcome("genetic", 60.0)])) == 1


def crowd() -> tuple[list[Job], list[Node]]:
    """Four GPUs, single ones that come all the time, a job that needs all four, and one that fits nowhere."""
    jobs = [Job(f"one{at}", at * 1_000, 4_000) for at in range(12)]
    jobs += [Job("all", 4_500, 4_000, gpus=4), Job("half", 5_000, 1_000, share=Share(500))]
    jobs += [Job("more", 6_000, 1_000, gpus=8)]
    return sorted(jobs, key=lambda job: job.submit_ms), [Node("n", 4, GpuModel("T4"))]


def test_waits_are_told_by_the_gpus_that_a_job_asks_for() -> None:
    jobs, nodes = crowd()
    columns = event_columns(simulate(jobs, Cluster(nodes), "first-fit"))
    waits = _waits(columns)
    came, started, mean_s = waits.T
    assert came.tolist() == [1, 12, 0, 1, 1]
    assert started.tolist() == [1, 12, 0, 1, 0]
    start = {
        columns.job_ids[job]: at
        for job, at in zip(columns.attempts.job, columns.attempts.start_ms, strict=True)
    }
    assert mean_s[3] == (start["all"] - 4_500) / 1000
    assert mean_s[1] == pytest.approx(np.mean([(start[f"one{at}"] - 1_000 * at) / 1000 for at in range(12)]))
    assert np.isnan(mean_s[[2, 4]]).all()


def test_the_report_says_how_many_there_were_and_who_fits_nowhere(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    rows = "".join(f"j{at},{at},60000,{16 if at % 4 == 3 else 1 + at % 2}\n" for at in range(40))
    trace.write_text("id,submit_ms,work_ms,gpus\n" + rows)
    case = case_of(f"{trace},cluster=1x8:V100")
    found = measure_utilisation([case], ("first-fit", "genetic"), seeds=(0, 1), keep=tmp_path)
    assert {(one.jobs, one.never_fitting, one.finished) for one in found} == {(40, 10, 30)}
    told, waits, _ = utilisation_chapters(found)
    assert "Of 40 jobs 10 ask for what no node has" in told.hint
    assert "means over 2 seeds, too few for intervals" in told.hint
    assert [row[-2:] for row in told.rows] == [("30", "40")] * 2
    assert not any("±" in cell for row in told.rows for cell in row)
    assert waits.headings == ("Policy", "1: 20 jobs", "2 or 3: 10 jobs", "8 or more: 10 jobs")
    assert [row[-1] for row in waits.rows] == ["none started"] * 2
    curve, times = (figure for _, figure in told.figures)
    assert curve.layout.xaxis.title.text == "Jobs scheduled so far (means over 2 seeds)"
    assert times.layout.xaxis.title.text == "Hours (means over 2 seeds)"
    assert not any(line.error_x.visible for line in times.data)
    answer = utilisation_dict(found)["runs"][0]  # type: ignore[index]
    assert (answer["jobs"], answer["never_fitting"], answer["waits"][4]) == (
        40,
        10,
        {"gpus": "8 or more", "jobs": 10, "started": 0, "mean_wait_s": None},
    )


def test_a_run_that_was_kept_before_waits_were_measured_is_still_read(tmp_path: Path) -> None:
    case = case_of("synthetic:demo?jobs=20")
    measure_utilisation([case], ("first-fit",), seeds=(0,), keep=tmp_path)
    kept, task = KeptUses(tmp_path), UseTask(case, "first-fit", 0)
    use = kept.load(task)
    assert use is not None
    assert use.waits.shape == (5, 3)
    path = next(tmp_path.glob("runs/*.parquet"))
    file = read_kept(path, utilisation_run._digest(task))
    assert file is not None
    del file.curves["waits"]
    write_kept(path, file)
    again = measure_utilisation([case], ("first-fit",), seeds=(0,), keep=tmp_path)
    assert [chapter.title for chapter in utilisation_chapters(again)] == [case.name]


def test_a_workload_without_jobs_is_refused() -> None:
    with pytest.raises(SettingError, match="has no jobs; expected at least 1"):
        measure_utilisation([case_of("synthetic:pai-like?jobs=0")], ("first-fit",), seeds=(0,))


@pytest.mark.parametrize("policy", ["limits?file={}+fifo", "limits?user_running=1&file={}+easy+sjf+best-fit"])
def test_a_measurement_is_not_kept_for_a_policy_whose_settings_file_has_changed(
    tmp_path: Path, policy: str
) -> None:
    path = tmp_path / "limits.json"
    task = UseTask(Case("synthetic:demo?jobs=60"), policy.format(path), 0)
    write_limits(path, Limit("user", running=1))
    before = _digest(task)
    write_limits(path, Limit("user", running=10))
    assert _digest(task) != before
