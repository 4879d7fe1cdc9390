"""Predictions of waits: what they may know, how they are judged, what they answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import HistoryError, SettingError
from berth.history.importing.pending import read_queue
from berth.history.importing.sacct import import_text
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.pseudonyms import pseudonym, read_key
from berth.waiting import Answer, Judgement, Questions, WaitModel, evaluate, judge, train
from berth.waiting.conformal import censored_quantile, held_between, rolling_interval
from berth.waiting.model import DAYS_TO_PROMISE, judged_on
from berth.waiting.questions import categories_of, live_features
from berth.waiting.refit import MODEL_NAME
from tests.history import exports
from tests.waiting.test_queue import SQUEUE

pytest.importorskip("lightgbm", reason="the extra 'account' is not installed")


def made_up(jobs: int = 3000) -> Questions:
    """Waits that follow the length of the queue, with some noise."""
    random = np.random.default_rng(7)
    queue = random.integers(0, 100, jobs).astype(np.float64)
    gpus = random.integers(1, 9, jobs).astype(np.float64)
    wait = 10 ** (0.02 * queue + 0.1 * gpus + random.normal(0, 0.2, jobs))
    return Questions(("gpus", "queue"), np.column_stack([gpus, queue]), np.arange(jobs) * 600.0, wait)


def test_what_drives_waits_is_learned_and_the_interval_holds_four_fifths() -> None:
    found = evaluate(made_up())
    assert found.mse_log10 < 0.1 < 0.3 < found.baseline_mse_log10
    assert 0.74 < found.coverage_80 < 0.86
    assert (found.trained, found.tested) == (2400, 600)


def test_only_waits_that_had_ended_before_the_split_are_learned_from() -> None:
    questions = made_up()
    questions.wait_s[2000:2400] = 1e9
    assert evaluate(questions).trained == 2000


@pytest.mark.parametrize(("wait_s", "days_missed"), [(50_400, 1), (90_000, 2)])
def test_a_day_is_predicted_from_the_waits_known_at_its_first_question(
    wait_s: float, days_missed: int
) -> None:
    # Noon after noon jobs wait 1000 s; from the ninth on they wait far longer, until before or after the next noon.
    day = np.repeat(np.arange(10), 300)
    wait = np.where(day < 8, 1000.0, wait_s)
    questions = Questions(("late",), (day >= 8)[:, None] * 1.0, day * 86_400.0 + 43_200, wait)
    found = judged_on(questions, questions.at(day < 8), questions.at(day >= 8), refits=10)
    gap = np.log10(1 + wait_s) - np.log10(1001)
    assert found.mse_log10 == pytest.approx(days_missed / 2 * gap**2, rel=0.02)


def test_an_answer_survives_its_file_and_names_its_drivers(tmp_path: Path) -> None:
    questions = made_up()
    model = train(questions)
    model.save(tmp_path / "model.json")
    again = WaitModel.load(tmp_path / "model.json")
    busy, idle = np.array([4.0, 95.0]), np.array([4.0, 2.0])
    assert again.answer(busy) == model.answer(busy)
    answer = model.answer(busy)
    assert answer.low_s <= answer.median_s <= answer.high_s
    assert answer.drivers[0][0] == "queue"
    assert answer.drivers[0][1] > 1 > model.answer(idle).drivers[0][1]


def test_too_few_waits_and_a_missing_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="too few"):
        evaluate(made_up(100))
    with pytest.raises(HistoryError, match="predict-wait train"):
        WaitModel.load(tmp_path / "none.json")


@pytest.mark.parametrize("text", ["[]", '{"version": 3, "names": [], "trees": {}, "outside": [0.0]}'])
def test_a_model_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(HistoryError, match="predict-wait train"):
        WaitModel.load(tmp_path / "model.json")


def test_a_model_that_learned_from_other_features_is_not_asked(tmp_path: Path) -> None:
    import_text(
        open_history(tmp_path / "h"), exports.write(tmp_path / "f", [exports.line(JobIDRaw=1)]), Options()
    )
    train(made_up(1000)).save(tmp_path / "h" / "waiting.json")
    (tmp_path / "queue.json").write_text(json.dumps(SQUEUE))
    for words in (
        ["request", "--queue", str(tmp_path / "queue.json")],
        ["queue", str(tmp_path / "queue.json"), "--now", "2023-11-19T14:20:00"],
    ):
        with pytest.raises(HistoryError, match=r"other features.*predict-wait train"):
            CliRunner().invoke(
                app, ["predict-wait", *words, "--history", str(tmp_path / "h")], catch_exceptions=False
            )


def test_the_queue_is_counted_as_it_was_at_the_moment_of_asking(tmp_path: Path) -> None:
    base = 1_700_000_000
    rows = [
        exports.line(JobIDRaw=1, User="ann", Submit=base, Eligible=base, Start=base + 10, End=base + 100),
        exports.line(
            JobIDRaw=2, User="bob", Submit=base + 5, Eligible=base, Start=base + 100, End=base + 200
        ),
        exports.line(
            JobIDRaw=3, User="ann", Submit=base + 50, Eligible=base, Start=base + 150, End=base + 300
        ),
    ]
    history = open_history(tmp_path / "h")
    import_text(history, exports.write(tmp_path / "f", rows), Options())
    with history.database() as database:
        features, asked, waits, _ = live_features(database, (), 0)
    assert asked.tolist() == [base, base + 5, base + 50]
    assert waits.tolist() == [10, 95, 100]
    assert features["waiting_jobs_all"].tolist() == [0, 1, 1]
    assert features["running_jobs_all"].tolist() == [0, 0, 1]
    assert features["running_gpus_user"].tolist() == [0, 0, 2]
    assert features["waiting_jobs_user"].tolist() == [0, 0, 0]


# --- intervals --------------------------------------------------------------------------------------


def test_a_censored_quantile_counts_who_is_not_over_yet() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0])
    assert censored_quantile(values, np.ones(4, bool), 0.5) == 2.0
    # The one at 2 is known to last longer: what is left of it goes to those behind it.
    assert censored_quantile(values, np.array([True, False, True, True]), 0.5) == 3.0
    assert censored_quantile(values, np.zeros(4, bool), 0.5) == 4.0


def drifting(days: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Waits that double every ten days, asked eight hundred times a day."""
    random = np.random.default_rng(3)
    asked = np.repeat(np.arange(days) * 86_400.0 + 43_200, 800)
    return asked, 10 ** (2 + 0.03 * asked / 86_400 + random.normal(0, 0.4, len(asked)))


def test_the_interval_follows_waits_that_drift_away_from_what_was_learned() -> None:
    asked, wait = drifting()
    flat = [np.full(len(asked), 2 + score * 0.4) for score in (-1.2816, 0.0, 1.2816)]
    target = np.log10(1 + wait)
    as_learned = float(np.mean((flat[0] <= target) & (target <= flat[2])))
    low, high = rolling_interval(asked, wait, (flat[0], flat[1], flat[2]), np.zeros(100), 0.8)
    held = float(np.mean((low <= target) & (target <= high)))
    assert as_learned < 0.4
    assert 0.78 < held < 0.82


def test_no_interval_knows_what_comes_after_it_was_asked() -> None:
    asked, wait = drifting(20)
    ends = tuple(np.full(len(asked), 2 + score * 0.4) for score in (-1.2816, 0.0, 1.2816))
    before = np.zeros(100)
    low, high = rolling_interval(asked, wait, ends, before, 0.8)  # type: ignore[arg-type]
    moment = asked[10 * 800]
    later = np.where(asked + wait >= moment, wait * 50 + 1e6, wait)
    again = rolling_interval(asked, later, ends, before, 0.8)  # type: ignore[arg-type]
    known = asked <= moment
    np.testing.assert_array_equal(low[known], again[0][known])
    np.testing.assert_array_equal(high[known], again[1][known])


def test_the_share_that_held_is_as_sure_as_days_are_alike() -> None:
    asked = np.repeat(np.arange(10) * 86_400.0, 100)
    alike = np.tile(np.arange(100) < 80, 10)
    assert held_between(asked, alike) == pytest.approx((0.8, 0.8))
    # 70 and 90 of 100 in turns: days, not questions, are what there is of.
    differ = np.concatenate([np.arange(100) < (70, 90)[day % 2] for day in range(10)])
    assert held_between(asked, differ) == pytest.approx((0.733, 0.867), abs=0.001)
    assert held_between(asked[:400], alike[:400]) is None


def test_held_jobs_are_no_prediction_and_tasks_of_one_answer_share_a_line(
    trained: Path, tmp_path: Path
) -> None:
    job = SQUEUE["jobs"][0]
    jobs = [
        {**job, "job_id": 9, "array_job_id": 9, "array_task_string": "9-11", "state_reason": "Priority"},
        {**job, "job_id": 70, "state_reason": "JobHeldUser"},
        {**job, "job_id": 71, "state_reason": "Dependency"},
        {**job, "job_id": 72, "state_reason": "JobHeldAdmin", "admin_comment": "berth:1;node=;job="},
        {**job, "job_id": 73, "state_reason": "JobHeldAdmin", "admin_comment": "ask ann first"},
    ]
    (tmp_path / "queue.json").write_text(json.dumps({"jobs": jobs}))
    words = (
        *("predict-wait", "queue", tmp_path / "queue.json", "--now", "2023-11-19T14:20:00"),
        *("--history", trained),
    )
    lines = run(*words).splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == ["9_9 to 9_11 (3 tasks)", "72", "70", "71", "73"]
    assert lines[2:5] == [
        "70: cannot start yet (JobHeldUser)",
        "71: cannot start yet (Dependency)",
        "73: cannot start yet (JobHeldAdmin)",
    ]
    rows = {row["job"]: row for row in json.loads(run(*words, "--json"))}
    assert (rows["70"]["median_s"], rows["70"]["blocked"]) == (None, "JobHeldUser")
    assert rows["72"]["median_s"] >= 0
    assert rows["72"]["blocked"] is None


def test_a_model_that_cannot_be_judged_is_kept_and_says_so() -> None:
    burst = made_up()
    at_once = replace(burst, asked_s=np.arange(len(burst)) / 1000, wait_s=burst.wait_s + 10)
    (doubt,) = judge(at_once).doubts
    assert "cannot be judged: when the last fifth of the jobs began to be submitted, 0 of" in doubt
    with pytest.raises(SettingError, match="cannot be judged"):
        evaluate(at_once)


def test_who_has_waited_long_is_told_to_wait_on(tmp_path: Path) -> None:
    model = train(made_up())
    row = np.array([4.0, 50.0])
    whole = model.answer(row)
    fresh, late = model.answer_waiting(row, 0.0), model.answer_waiting(row, whole.high_s)
    assert fresh.median_s == pytest.approx(whole.median_s, rel=0.05)
    assert fresh.high_s == pytest.approx(whole.high_s, rel=0.05)
    assert 0 <= late.low_s <= late.median_s <= late.high_s
    assert late.median_s > 0


def a_trained_history(folder: Path, **values: object) -> Path:
    """600 jobs of two users on a100 with a short wait each, and the model of their waits."""
    base = 1_700_000_000
    random = np.random.default_rng(5)
    rows = [
        exports.line(
            JobIDRaw=n,
            User=("ann", "bob")[n % 2],
            Submit=base + n * 600,
            Eligible=base + n * 600,
            Start=base + n * 600 + 60 * (1 + n % 7) + int(random.integers(0, 30)),
            End=base + n * 600 + 4000,
        )
        for n in range(600)
    ]
    history = folder / "h"
    import_text(open_history(history), exports.write(folder / "f", rows), Options(**values))  # type: ignore[arg-type]
    run("predict-wait", "train", "--history", history)
    return history


def run(*words: object, status: int = 0) -> str:
    """What a command prints on standard output; where it fails, what it says."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if status:
        assert isinstance(done.exception, SettingError | HistoryError), done.output
        return str(done.exception)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_trained_history(tmp_path_factory.mktemp("trained"))


def test_what_was_trained_is_a_row_for_programs(trained: Path) -> None:
    told = json.loads(run("predict-wait", "train", "--history", trained, "--json"))
    assert told == {
        "waits": 600,
        "model": str(trained / "waiting.json"),
        "warnings": list(WaitModel.load(trained / "waiting.json").judgement.doubts),
    }


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--partition", "the history has no partition 'nosuch'; it has a100"),
        ("--qos", "the history has no QOS 'nosuch'; it has normal"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused(trained: Path, option: str, words: str) -> None:
    asked = ("predict-wait", "request", option, "nosuch", "--history", trained)
    assert run(*asked, status=2) == words


def test_who_is_new_and_more_gpus_than_ever_are_warned_of(trained: Path, tmp_path: Path) -> None:
    known = ("--partition", "a100", "--user", "ann", "--account", "ai", "--application", "pytorch")
    (tmp_path / "queue.json").write_text(json.dumps(SQUEUE))
    queue = ("--queue", tmp_path / "queue.json", "--now", "2023-11-19T14:20:00")
    ask = ("predict-wait", "request", "--history", trained, *queue, "--json")
    doubts = list(WaitModel.load(trained / "waiting.json").judgement.doubts)
    assert json.loads(run(*ask, *known, "--gpus", 2))["warnings"] == doubts
    new = ("--user", "zoe", "--account", "new", "--application", "odd", "--gpus", 900)
    assert json.loads(run(*ask, *new))["warnings"] == [
        "the history has no user 'zoe', so the answer is that of a new one",
        "the history has no account 'new', so the answer is that of a new one",
        "the history has no application 'odd', so the answer is that of a new one",
        "no job of the history had more than 2 GPUs; the answer for 900 is a guess",
        *doubts,
    ]
    told = CliRunner().invoke(app, [*map(str, ask[:-1]), "--user", "zoe"])
    assert "warning: the history has no user 'zoe'" in told.stderr
    assert told.stdout.startswith("median ")


@pytest.mark.slow
def test_questions_to_a_history_with_pseudonyms_are_asked_by_its_key(tmp_path: Path) -> None:
    key = read_key(tmp_path / "key", tmp_path / "h")
    read_key(tmp_path / "other", tmp_path / "h")
    history = a_trained_history(tmp_path, key=key)
    (tmp_path / "queue.json").write_text(json.dumps(SQUEUE))
    ask = (
        "predict-wait",
        "request",
        "--user",
        "ann",
        "--history",
        history,
        "--queue",
        tmp_path / "queue.json",
    )
    queue = ("predict-wait", "queue", tmp_path / "queue.json", "--history", history)
    for words in (ask, queue):
        assert "has pseudonyms; name the key" in run(*words, status=2)
        assert "by another key" in run(*words, "--pseudonymise", tmp_path / "other", status=2)
        assert "there is no key in" in run(*words, "--pseudonymise", tmp_path / "none", status=2)
    assert not (tmp_path / "none").exists()
    doubts = list(WaitModel.load(history / "waiting.json").judgement.doubts)
    assert json.loads(run(*ask, "--pseudonymise", tmp_path / "key", "--json"))["warnings"] == doubts
    (answer,) = json.loads(run(*queue, "--pseudonymise", tmp_path / "key", "--json"))
    assert answer["user"] == pseudonym(key, "user", "ann")


def test_an_answer_that_nothing_drives_ends_where_it_ends(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.json").write_text(json.dumps(SQUEUE))
    monkeypatch.setattr(WaitModel, "answer", lambda *_: Answer(10.0, 1.0, 100.0, ()))
    told = run("predict-wait", "queue", tmp_path / "queue.json", "--history", trained)
    assert told.startswith("9001: ")
    assert told.splitlines()[0].endswith(")")


@pytest.mark.slow
def test_every_job_of_the_queue_gets_its_answer(tmp_path: Path) -> None:
    history = a_trained_history(tmp_path)
    (tmp_path / "queue.json").write_text(json.dumps(SQUEUE))
    told = run(
        *("predict-wait", "queue", tmp_path / "queue.json", "--now", "2023-11-19T14:20:00"),
        *("--history", history, "--json"),
    )
    (answer,) = json.loads(told)
    assert (answer["job"], answer["waited_s"]) == ("9001", 3600.0)
    assert 0 <= answer["low_s"] <= answer["median_s"] <= answer["high_s"]
    assert answer["drivers"]


def test_a_request_is_asked_now_behind_the_real_queue(trained: Path, tmp_path: Path) -> None:
    pending = [{**SQUEUE["jobs"][0], "job_id": 9100 + n, "user_name": "bob"} for n in range(40)]
    (tmp_path / "long.json").write_text(json.dumps({"jobs": pending}))
    jobs = read_queue(tmp_path / "long.json")
    asked = replace(jobs[0], job_id="", user="ann", queued_ms=1_700_400_600_000)
    model = WaitModel.load(trained / "waiting.json")
    with open_history(trained).database() as database:
        features, moments, waits, places = live_features(
            database, [*jobs, asked], asked.queued_ms, model.categories
        )
    at = int(np.flatnonzero(places == len(jobs))[0])
    assert (features["waiting_jobs_all"][at], features["waiting_gpus_all"][at]) == (40, 80)
    assert (moments[at], waits[at]) == (1_700_400_600, np.inf)
    assert features["user"][at] == model.categories["user"].index("ann")


def test_a_range_is_printed_where_too_few_days_are_known_to_promise_a_share(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.json").write_text(json.dumps(SQUEUE))
    queue = (tmp_path / "queue.json", "--now", "2023-11-19T14:20:00", "--history", trained)
    model = WaitModel.load(trained / "waiting.json")
    days = "(waits of 6 days are known; 48 are needed to promise 80 of 100)"
    for held, cases, why in (
        (None, "in an unknown share of cases", " " + days),
        ((0.62, 0.9), "in 62 to 90 of 100 cases", " " + days),
    ):
        model.judgement = Judgement((), held)
        model.save(tmp_path / "waiting.json")
        monkeypatch.setattr("berth.waiting.refit.MODEL_NAME", str(tmp_path / "waiting.json"))
        told = run("predict-wait", "request", "--queue", *queue).splitlines()[0]
        assert f"; {cases} from " in told
        assert told.endswith(why)
        told = run("predict-wait", "queue", *queue).splitlines()[-1]
        assert told == f"{cases.capitalize()} within these times{why}"
        answer = json.loads(run("predict-wait", "request", "--queue", *queue, "--json"))
        assert (answer["held_share"], answer["days_known"]) == (held and list(held), 6)
    assert model.promised(DAYS_TO_PROMISE - 1) == (0.62, 0.9)
    assert model.promised(DAYS_TO_PROMISE) == (0.8, 0.8)
    monkeypatch.setattr("berth.waiting.model.DAYS_TO_PROMISE", 5)
    told = run("predict-wait", "request", "--queue", *queue).splitlines()[0]
    assert "; in 80 of 100 cases from " in told
    assert told.endswith(" s")


def test_nothing_that_only_a_placed_job_has_is_a_feature_and_texts_are_categories(trained: Path) -> None:
    with open_history(trained).database() as database:
        features, _, _, _ = live_features(database, (), 0)
        assert categories_of(database)["user"] == ("ann", "bob")
        less, _, _, _ = live_features(database, (), 0, {**categories_of(database), "user": ("bob",)})
    assert not {"gpu_model", "cpu_milli", "nodes"} & features.keys()
    assert features["user"][:4].tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(less["user"][:4], [np.nan, 0, np.nan, 0])


def test_the_live_interval_is_moved_by_the_rule_that_is_judged() -> None:
    questions = made_up()
    model = train(questions.at(np.arange(3000) < 2400))
    late = questions.at(np.arange(3000) >= 2400)
    later = Questions(late.names, late.values, late.asked_s, late.wait_s * 30)  # all wait far longer now
    now_s = float(later.asked_s[-1] + later.wait_s.max() + 86_400)
    assert model.offset_at(now_s, late.values, late.asked_s, late.wait_s) < 0.3
    moved = model.offset_at(now_s, later.values, later.asked_s, later.wait_s)
    assert moved > 1
    assert model.offset_at(0.0, later.values, later.asked_s, later.wait_s) == model.offset
    row = questions.values[0]
    assert model.answer(row, moved).high_s > 9 * model.answer(row).high_s
    # Of what still waits only the time that has passed is known.
    waiting = np.full(len(late), np.inf)
    assert model.offset_at(now_s, late.values, late.asked_s, waiting) > 1


@pytest.mark.slow
def test_a_model_that_is_worth_little_says_so() -> None:
    random = np.random.default_rng(1)
    noise = Questions(
        ("a",), random.normal(size=(2000, 1)), np.arange(2000) * 600.0, 10 ** random.normal(2, 1, 2000)
    )
    assert any("no better than a constant" in each for each in judge(noise).doubts)
    assert judge(made_up()).doubts == ()
    assert "too few to judge" in judge(made_up(300)).doubts[0]


def shifting(count: int) -> Questions:
    """Questions of ten days. From the ninth on jobs of a new partition wait a hundred times as long."""
    random = np.random.default_rng(7)
    asked_s = np.sort(random.uniform(0, 10 * 86_400, count))
    busy = random.uniform(0, 1, count)
    late = asked_s > 8 * 86_400
    wait_s = 10 ** (1 + busy + 2 * late + random.normal(0, 0.1, count))
    return Questions(("busy", "partition"), np.column_stack([busy, late]), asked_s, wait_s)


@pytest.mark.slow
def test_a_model_that_learns_each_day_follows_what_one_that_learned_once_misses() -> None:
    questions = shifting(4000)
    place = np.arange(4000)
    learned, tested = questions.at(place < 3200), questions.at(place >= 3200)
    once = judged_on(questions, learned, tested, refits=0)
    daily = judged_on(questions, learned, tested)
    assert daily.mse_log10 < 0.8 * once.mse_log10
    assert evaluate(questions).last_month == (round(evaluate(questions).coverage_80 * 800), 800)


def test_a_refit_learns_from_no_wait_that_had_not_ended_by_then() -> None:
    questions = shifting(4000)
    place = np.arange(4000)
    learned, tested = questions.at(place < 3200), questions.at(place >= 3200)
    endless = np.where(place >= 3200, 1e9, questions.wait_s)
    later = Questions(questions.names, questions.values, questions.asked_s, endless)
    once = judged_on(later, learned, tested, refits=0)
    assert judged_on(later, learned, tested).mse_log10 == pytest.approx(once.mse_log10, rel=0.2)


@pytest.mark.slow
def test_each_import_learns_a_kept_model_anew_and_predictions_tell_what_their_interval_held(
    tmp_path: Path,
) -> None:
    history = a_trained_history(tmp_path)
    before = WaitModel.load(history / MODEL_NAME)
    start = 1_700_000_000 + 600 * 600
    rows = [
        exports.line(
            JobIDRaw=9000 + n, Submit=start + n, Eligible=start + n, Start=start + n + 9, End=start + 99
        )
        for n in range(5)
    ]
    run("import", "sacct", exports.write(tmp_path / "g", rows), "--history", history)
    after = WaitModel.load(history / MODEL_NAME)
    assert after.learned_s == start + 13 > before.learned_s
    assert after.judgement.last_month is not None
    held, told = after.judgement.last_month
    (tmp_path / "queue.json").write_text(json.dumps(SQUEUE))
    said = run(
        "predict-wait", "request", "--queue", tmp_path / "queue.json", "--partition", "a100",
        "--now", "2023-11-19T14:20:00", "--history", history,
    )  # fmt: skip
    assert f"in the last 30 days {held:,} of {told:,} waits lay within theirs" in said


@pytest.mark.slow
def test_an_import_makes_no_model_where_there_was_none_and_keeps_one_that_cannot_be_learned(
    tmp_path: Path,
) -> None:
    line = exports.line(JobIDRaw=1)
    run("import", "sacct", exports.write(tmp_path / "f", [line]), "--history", tmp_path / "h")
    assert not (tmp_path / "h" / MODEL_NAME).exists()
    (tmp_path / "h" / MODEL_NAME).write_text("kept")
    run("import", "sacct", exports.write(tmp_path / "g", [line]), "--history", tmp_path / "h")
    assert (tmp_path / "h" / MODEL_NAME).read_text() == "kept"
