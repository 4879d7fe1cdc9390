"""The experiment of chapter V: what it measures, that it goes on where it was stopped, and what its command writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import SettingError
from berth.experiments.compare.kept import interference_digest
from berth.interference import make_interference, make_speeds
from berth.interference.contention import Contention
from berth.interference.named import NamedPairs
from berth.interference.profiled import ProfiledInterference
from berth.model import Job, Profile
from berth.plots import policy_styles
from berth.profiles import THESIS_GPU, WORKLOADS
from berth.statistics import Interval
from berth_papers.bounds import TimeBound
from berth_papers.cli.colocation import colocation
from berth_papers.colocation.answer import above_bound_pct, colocation_dict, costs, difference_pct
from berth_papers.colocation.chapters import colocation_chapters
from berth_papers.colocation.chapters_of_totals import totals
from berth_papers.colocation.disagreement import PAIR_APPLICATIONS, Pair, _Counter, disagreement, pairs
from berth_papers.colocation.experiment import Colocation, _place, measure_colocation
from berth_papers.colocation.outcome import Outcome, Stay, outcome_of
from berth_papers.colocation.plots import bars_by_workload, frontier, pair_map
from berth_papers.colocation.thesis import CONTRADICTIONS

POLICIES = ("sjf+first-fit", "greedy", "learned?model=untrained")


def flat(gpu: float, mem: float) -> Profile:
    return Profile("a", "", 0, "", THESIS_GPU, 1000, np.full((100, 4), [gpu, mem, 0.0, 0.0]))


def test_an_outcome_is_what_one_works_out_by_hand() -> None:
    profiles = {"a": flat(0.4, 0.25)}
    interference = ProfiledInterference(profiles, make_speeds("none"))
    one, two = (Job(name, 0, 100_000, application="a") for name in ("one", "two"))
    stays = [
        Stay(one, 0, 100_000, False),
        Stay(two, 50_000, 60_000, True),
        Stay(two, 100_000, 200_000, False),
    ]
    found = outcome_of("w", "p", 3, stays, profiles, interference, THESIS_GPU)
    assert found == Outcome(
        "w", "p", 3, 200.0, pytest.approx(42.0), pytest.approx(26.25), 6144, 2, 1, (1, 0, 0, 1)
    )  # two of the first tries of job two count for what they use, and its slowdown from its first start


@pytest.mark.slow
def test_runs_are_kept_and_what_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"seeds": (0, 1), "jobs": 4, "keep": tmp_path, "policies": POLICIES}
    calls: list[tuple[float, float]] = []

    def stop(done: float, total: float, said: str) -> None:
        calls.append((done, total))
        if done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_colocation(["GPU_light"], progress=stop, **asked)  # type: ignore[arg-type]
    kept = len(list(tmp_path.rglob("*.parquet")))
    assert 1 <= kept < 6
    first = measure_colocation(["GPU_light"], **asked)  # type: ignore[arg-type]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    again = measure_colocation(["GPU_light"], **asked)  # type: ignore[arg-type]
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    assert first.outcomes == again.outcomes
    assert first.bounds == again.bounds
    assert {(one.policy, one.seed, one.finished, one.out_of_memory) for one in first.outcomes} == {
        (policy, seed, 4, 0) for policy in POLICIES for seed in (0, 1)
    }
    for one in first.outcomes:
        if first.bounds:
            assert one.total_s * 1000 >= first.bounds["GPU_light", one.seed].total_ms


@pytest.mark.slow
def test_kept_bounds_are_those_of_the_same_jobs(tmp_path: Path) -> None:
    pytest.importorskip("highspy", reason="the bound needs the extra 'optimum'")
    asked = {"seeds": (0,), "policies": ("greedy",)}
    for jobs in (3, 2, 3):
        kept = measure_colocation(["GPU_light"], jobs=jobs, keep=tmp_path, **asked)  # type: ignore[arg-type]
        fresh = measure_colocation(["GPU_light"], jobs=jobs, **asked)  # type: ignore[arg-type]
        assert kept.bounds == fresh.bounds
    assert len(list(tmp_path.rglob("bound.*.json"))) == 2


def test_a_fitted_model_named_by_its_whole_path_keeps_its_runs_in_the_folder(tmp_path: Path) -> None:
    mine = tmp_path / "elsewhere" / "mine.json"
    mine.parent.mkdir()
    mine.write_text(Contention("mps", 700, np.zeros((1, 3), np.int32), np.zeros((1, 1), np.int32)).to_json())
    keep = tmp_path / "kept"
    asked = {"seeds": (0,), "jobs": 2, "policies": ("greedy",), "interference": str(mine), "keep": keep}
    measure_colocation(["GPU_light"], **asked)  # type: ignore[arg-type]
    assert [path.name for path in mine.parent.iterdir()] == ["mine.json"]
    assert list(keep.rglob("*.parquet"))


def test_models_that_differ_in_a_number_alone_keep_their_runs_apart() -> None:
    centre = np.array([[50, 50, 140]], dtype=np.int32)
    models = [Contention("mps", 700, centre, np.array([[stress]], np.int32)) for stress in (500, 501)]
    named = NamedPairs({"K80": {"a": (1, 2)}})
    made = [ProfiledInterference({}, speeds, names) for speeds in models for names in (None, named)]
    assert len({interference_digest(one) for one in made}) == 4
    assert len({repr(one) for one in made}) == 4


def made_up(learned: float, greedy: float, bound: float) -> Colocation:
    """Three seeds on random: SJF takes 100 s, 120 s and 140 s."""
    totals = {"sjf+first-fit": 100.0, "greedy": greedy, "learned": learned}
    outcomes = tuple(
        Outcome("random", policy, seed, total + 20 * seed, 50.0, 50.0, 100, 30, 0, (25, 5, 0, 0))
        for policy, total in totals.items()
        for seed in (0, 1, 2)
    )
    bounds = {("random", seed): TimeBound(1000 * (bound + 20 * seed), 0, 0, 0) for seed in (0, 1, 2)}
    return Colocation("mps", ("random",), tuple(totals), (0, 1, 2), outcomes, bounds, ())


def figure_3() -> list[Pair]:
    """Figure 3, for tests of something else."""
    return [Pair(one, other, 1.0, 2.0, 3.0, 4.0) for one in PAIR_APPLICATIONS for other in PAIR_APPLICATIONS]


def test_the_claims_of_the_json_follow_from_its_numbers() -> None:
    result = made_up(80.0, 90.0, 78.0)
    assert difference_pct(result, "random", "learned", "greedy").mean == pytest.approx(-1000 / 110)
    above = pytest.approx([100 * 2 / 78, 100 * 2 / 98, 100 * 2 / 118])
    assert above_bound_pct(result, "random", "learned") == above
    assert [cost.saved_pct for cost in costs(result)] == pytest.approx(
        [100 * (1 - 100 / 120 * 0.602 / 0.75), 100 * (1 - 100 / 120 * 0.301 / 0.526)]
    )
    claims = colocation_dict(result, [], [], {})["claims"]
    assert claims == {
        "lowest_mean_total_time": {"random": True},
        "paired_interval_below_zero": {"random, sjf+first-fit": "below", "random, greedy": "below"},
        "no_out_of_memory": True,
        "above_bound_pct": {"random": pytest.approx(np.mean([100 * 2 / 78, 100 * 2 / 98, 100 * 2 / 118]))},
        "within_5_pct_of_bound_on_average": True,
    }
    worse = colocation_dict(made_up(95.0, 90.0, 60.0), [], [], {})["claims"]
    assert isinstance(worse, dict)
    assert worse["lowest_mean_total_time"] == {"random": False}
    assert worse["paired_interval_below_zero"]["random, greedy"] == "above"
    assert worse["within_5_pct_of_bound_on_average"] is False


@pytest.mark.slow
@pytest.mark.parametrize("sets", [1, 2])
def test_of_one_set_or_two_nothing_is_said_that_takes_an_interval(sets: int) -> None:
    three = made_up(95.0, 90.0, 60.0)
    few = tuple(each for each in three.outcomes if each.seed < sets)
    one = replace(three, seeds=tuple(range(sets)), outcomes=few)
    claims = colocation_dict(one, [], [], {})["claims"]
    assert isinstance(claims, dict)
    assert set(claims["paired_interval_below_zero"].values()) == {"too few sets, no interval"}
    interference = make_interference("mps")
    assert isinstance(interference, ProfiledInterference)
    chapters = colocation_chapters(one, [], pairs(interference), {})
    assert ("random, greedy", ("+5.56", "+5.00")[sets - 1], "", "") in chapters[3].rows
    shown = [figure for chapter in chapters for _, figure in chapter.figures]
    assert shown
    assert "nan" not in str([chapter.rows for chapter in chapters])
    for bars in (shown[0], shown[1]):  # total time and GPU use
        assert {bar.error_y.visible for bar in bars.data if bar.type == "bar"} == {False}


def test_intervals_end_where_nothing_can_be_and_use_is_shown_from_0_to_100() -> None:
    wide = {"p": {"w": Interval(30.0, -200.0, 260.0, 3)}}
    (bar,) = bars_by_workload(wide, policy_styles(["p"]), "Use", "%").data
    assert (bar.error_y.array, bar.error_y.arrayminus) == ((70.0,), (30.0,))
    assert bars_by_workload(wide, policy_styles(["p"]), "Use", "%").layout.yaxis.range == (0, 100)
    (bar,) = bars_by_workload(wide, policy_styles(["p"]), "Time", "s").data
    assert (bar.error_y.array, bar.error_y.arrayminus) == ((230.0,), (30.0,))


def test_a_pair_map_says_what_each_cell_has_and_where_memory_runs_out() -> None:
    (cells,) = pair_map(["a", "b"], np.array([[np.nan, 10.4], [0.0, 75.0]]), "t", "% longer").data
    assert cells.texttemplate == "%{text}"
    assert [list(row) for row in cells.text] == [
        ["out of memory", "10 % longer"],
        ["0 % longer", "75 % longer"],
    ]


def test_points_of_the_frontier_that_are_one_have_one_label() -> None:
    one = [("40 s", 30.0, 1000.0), ("80 s", 30.0, 1000.0)]
    assert frontier(one, {}, {}, "t").data[0].text == ("40 s, 80 s",)


@pytest.mark.slow
def test_what_the_thesis_says_is_in_the_json_and_what_is_doubtful_is_marked_where_it_stands() -> None:
    result = made_up(80.0, 90.0, 78.0)
    told = colocation_dict(result, [], [], {})["thesis"]
    assert isinstance(told, dict)
    heavy = {"workload": "GPUmemory_heavy", "policy": "learned", "total_s": 1214, "gpu_use_pct": 89.31}
    heavy |= {"gpu_mem_pct": 88.42, "gpu_mem_peak_mb": None, "doubtful": True}
    assert heavy in told["published"]
    assert told["contradictions"] == list(CONTRADICTIONS)
    assert json.loads(json.dumps(told)) == told
    memory = replace(
        result,
        workloads=("GPUmemory_heavy",),
        outcomes=tuple(replace(one, workload="GPUmemory_heavy") for one in result.outcomes),
        bounds={},
    )
    chapters = colocation_chapters(memory, [], figure_3(), {})
    assert {row[0]: row[1] for row in chapters[0].rows}["GPUmemory_heavy, learned"] == "100 ± 50 [1,214?]"
    crosses = [one for one in chapters[0].figures[0][1].data if one.type == "scatter"]
    assert [one.marker.symbol for one in crosses] == [("x-thin-open",)]
    assert "Lower bounds are left out, since the extra 'optimum' is not installed" in chapters[0].hint
    assert "GPU_heavy +1.7 % (1.017)" in chapters[3].hint


@pytest.mark.slow
def test_where_the_untrained_network_is_better_is_told_set_by_set() -> None:
    result = made_up(80.0, 90.0, 78.0)
    name = "learned?model=untrained"
    totals = (85.0, 110.0, 150.0)  # greedy: 90, 110, 130; SJF: 100, 120, 140; learned: 80, 100, 120
    ran = tuple(
        replace(result.outcomes[0], policy=name, seed=seed, total_s=totals[seed]) for seed in range(3)
    )
    result = replace(result, policies=(*result.policies, name), outcomes=(*result.outcomes, *ran))
    answer = colocation_dict(result, [], [], {})
    claims = answer["claims"]
    assert isinstance(claims, dict)
    assert claims["untrained_loses"] == {"random": True}
    told = answer["untrained"]
    assert isinstance(told, list)
    assert {one["over"]: (one["better"], one["equal"], one["worse"], one["sets"]) for one in told} == {
        "sjf+first-fit": (2, 0, 1, 3),
        "greedy": (1, 1, 1, 3),
        "learned": (0, 0, 3, 3),
    }
    chapter = next(
        one for one in colocation_chapters(result, [], figure_3(), {}) if "learned nothing" in one.title
    )
    assert ("random, greedy", "+4.55", "1", "1", "1") in chapter.rows
    assert "in 3 of 6 comparisons set by set" in chapter.hint


def test_sjf_alone_is_the_sjf_that_the_others_are_held_against() -> None:
    asked = {"seeds": (0,), "jobs": 3, "policies": ("sjf", "greedy")}
    found = measure_colocation(["GPU_light"], **asked)  # type: ignore[arg-type]
    assert found.policies == ("sjf+first-fit", "greedy")


def test_an_interruption_tells_how_many_runs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        (tmp_path / "kept" / "random").mkdir(parents=True)
        (tmp_path / "kept" / "random" / "one.parquet").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("berth_papers.colocation.experiment.measure_colocation", interrupted)
    with pytest.raises(KeyboardInterrupt):
        colocation("random", seeds=1, policies="greedy", jobs=1, out=tmp_path)
    told = f"berth: 1 finished run is in {tmp_path / 'kept'}; the same command continues from there\n"
    assert told in capsys.readouterr().err


def test_a_chooser_is_counted_where_it_decides_otherwise_than_greedy() -> None:
    interference = make_interference("time-sliced")
    found = disagreement("GPU_light", interference, (0,))
    assert found.decisions > 30 / 5
    assert 0 < found.other_combination + found.holds + found.starts <= found.decisions
    beside = _Counter(lambda scene: np.array([1, 0, 2, 0, 1]))
    fits = np.array([[True, True], [True, True], [True, True], [True, True], [True, False]])
    scene = SimpleNamespace(forecasts=SimpleNamespace(fits=fits))
    beside.counted(lambda scene: np.array([0, 1, 1, 0, 0]))(scene)  # type: ignore[arg-type]
    counted = beside.decisions, beside.other_combination, beside.holds, beside.starts
    assert counted == (4, 1, 1, 1)


@pytest.mark.parametrize(
    ("workloads", "told"),
    [
        (("random",), "random"),
        (("random", "GPU_light"), "random and GPU_light"),
        (tuple(WORKLOADS), "the five workloads"),
    ],
)
def test_the_title_names_the_workloads_that_were_run(workloads: tuple[str, ...], told: str) -> None:
    one = made_up(80.0, 90.0, 78.0)
    outcomes = tuple(replace(each, workload=name) for name in workloads for each in one.outcomes)
    result = replace(one, workloads=workloads, outcomes=outcomes, bounds={})
    assert totals(result, policy_styles(one.policies)).title == f"Total time on {told} (figures 10–14)"


@pytest.mark.slow
def test_the_report_shows_the_thesis_s_numbers_as_the_thesis_s_and_where_it_contradicts_itself() -> None:
    interference = make_interference("mps")
    assert isinstance(interference, ProfiledInterference)
    chapters = colocation_chapters(made_up(80.0, 90.0, 78.0), [], pairs(interference), {"learned": 60.0})
    titles = [chapter.title for chapter in chapters]
    assert titles[0] == "Total time on random (figures 10–14)"
    rows = {row[0]: row for row in chapters[0].rows}
    assert rows["random, learned"][1:4] == ("100 ± 50 [2,481]", "50.0 [62.16]", "50.0 [20.45]")
    light = replace(
        made_up(80.0, 90.0, 78.0),
        workloads=("GPU_light",),
        outcomes=tuple(replace(one, workload="GPU_light") for one in made_up(80.0, 90.0, 78.0).outcomes),
        bounds={},
    )
    table = colocation_chapters(light, [], pairs(interference), {})[0]
    assert {row[0]: row[4] for row in table.rows}["GPU_light, learned"] == "100 [11,755]"
    bars = chapters[0].figures[0][1]
    # 127 s of interval reach below 0 and are cut.
    assert tuple(bars.layout.yaxis.range) == (0, pytest.approx(1.2 * 2481))
    told = chapters[-1].hint
    assert "0.874" in told
    assert "1,214 s" in told
    overhead = next(chapter for chapter in chapters if "figure 16" in chapter.title)
    assert ("learned", "0.833", "0.500", "1.333", "1.081", "0.054") in overhead.rows
    maps = next(chapter for chapter in chapters if "figure 3" in chapter.title)
    assert "Out of memory: CNN with vgg16, LAMMPS with LAMMPS, vgg16 with vgg16." in maps.hint


@pytest.mark.slow
def test_the_page_says_every_claim_as_the_json_does() -> None:
    interference = make_interference("mps")
    assert isinstance(interference, ProfiledInterference)
    for result in (made_up(80.0, 90.0, 78.0), made_up(95.0, 90.0, 60.0)):
        claims = colocation_dict(result, [], [], {})["claims"]
        assert isinstance(claims, dict)
        flat = [
            one
            for value in claims.values()
            for one in (value.values() if isinstance(value, dict) else [value])
        ]
        said = {True: "yes", False: "no"}
        expected = [f"{one:.2f}" if isinstance(one, float) else said.get(one, one) for one in flat]
        chapter = next(
            one
            for one in colocation_chapters(result, [], pairs(interference), {})
            if one.title.startswith("What is asked")
        )
        assert [row[-1] for row in chapter.rows] == expected
        assert len({row[0] for row in chapter.rows}) == len(chapter.rows)


@pytest.mark.slow
def test_where_a_model_does_not_say_how_long_its_training_took_the_page_and_the_json_say_so() -> None:
    interference = make_interference("mps")
    assert isinstance(interference, ProfiledInterference)
    result = made_up(80.0, 90.0, 78.0)
    assert colocation_dict(result, [], [], {})["training_s"] == {"learned": None}
    assert colocation_dict(result, [], [], {"learned": 60.0})["training_s"] == {"learned": 60.0}
    chapters = colocation_chapters(result, [], pairs(interference), {})
    overhead = next(chapter for chapter in chapters if "figure 16" in chapter.title)
    assert ("learned", "0.833", "not recorded", "0.833", "1.081", "0.054") in overhead.rows
    assert ("greedy", "0.917", "", "0.917", "", "") in overhead.rows


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"workloads": ["heavy"]}, "no workload 'heavy'; there are GPU_heavy"),
        ({"seeds": [1_000_000]}, "seed 1000000 is one that models are trained on"),
        ({"seeds": []}, "at least one workload, one policy and one seed"),
        ({"interference": "none"}, "interference 'none' knows no profiles; there are time-sliced, mps, mig"),
    ],
)
def test_what_cannot_be_measured_is_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        measure_colocation(**asked)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_command_prints_json_alone_and_writes_the_report(tmp_path: Path) -> None:
    arguments = ["experiment", "colocation", "--workload", "GPU_light,random", "--seeds", "2", "--policies"]
    arguments += ["sjf+first-fit,tetris-sharing,greedy,learned", "--interference", "time-sliced"]
    answer = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path), "--json"])
    assert answer.exit_code == 0, answer.output
    told = json.loads(answer.stdout)
    assert told == json.loads((tmp_path / "result.json").read_text())
    assert {(one["workload"], one["policy"]) for one in told["summary"]} == {
        (workload, policy)
        for workload in ("GPU_light", "random")
        for policy in ("sjf+first-fit", "tetris-sharing", "greedy", "learned")
    }
    assert told["claims"]["no_out_of_memory"] is True
    assert told["knowledge"] == "oracle"
    assert len(told["frontier"]) == 7
    page = (tmp_path / "report.html").read_text()
    for text in (
        "figures 10–14",
        "figure 15",
        "figure 16",
        "figure 17",
        "figure 3",
        "2,481",
        "0.874",
        "knowledge: oracle",
    ):
        assert text in page


@pytest.mark.parametrize("policy", ["learned", "deeprm-max", "deeprm-mean"])
def test_runs_of_a_policy_that_learned_are_kept_by_the_model_that_ships(policy: str, tmp_path: Path) -> None:
    places = {_place(tmp_path, "random", policy, make_speeds(mode)) for mode in ("mps", "time-sliced")}
    assert {place.parent for place in places} == {tmp_path / "random"}
    assert len(places) == 2
    assert all(place.name.startswith("model-") for place in places)
