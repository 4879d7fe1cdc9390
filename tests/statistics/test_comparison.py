import pickle

import numpy as np
import pytest

from berth.statistics import METRICS, Mark, Metric, Run, Unit, event_columns, readable_unit, run_of, standings
from tests.statistics.histories import History, golden


def run(policy: str, seed: int) -> Run:
    history: History = golden()
    return run_of(event_columns(history.events), history.nodes, policy, seed)


def metric(values: dict[tuple[str, int], float], runs: list[Run], best: object = min) -> Metric:
    """A metric that has these values on the runs' summaries."""
    known = {id(each.summary): values[each.policy, each.seed] for each in runs}
    return Metric("made up", Unit.COUNT, lambda summary: known[id(summary)], best, "")  # type: ignore[arg-type]


def marks(values: dict[tuple[str, int], float], best: object = min) -> dict[str, Mark]:
    runs = [run(policy, seed) for policy, seed in values]
    return {each.policy: each.mark for each in standings(runs, metric(values, runs, best))}


def test_the_best_mean_is_marked_and_what_seeds_do_not_tell_from_it() -> None:
    values = {
        ("good", 1): 10.0, ("good", 2): 20.0, ("good", 3): 31.0,
        ("alike", 1): 10.5, ("alike", 2): 19.0, ("alike", 3): 33.0,
        ("worse", 1): 12.0, ("worse", 2): 22.1, ("worse", 3): 33.0,
    }  # fmt: skip
    assert marks(values) == {"good": Mark.BEST, "alike": Mark.LIKE_BEST, "worse": Mark.NONE}


def test_with_one_seed_only_the_best_is_marked() -> None:
    assert marks({("a", 1): 1.0, ("b", 1): 2.0}, max) == {"a": Mark.NONE, "b": Mark.BEST}


@pytest.mark.parametrize(("values", "best"), [((1.0, 1.0), min), ((1.0, 2.0), None)])
def test_nobody_is_best_where_all_are_equal_or_no_direction_is_better(
    values: tuple[float, float], best: object
) -> None:
    assert set(marks({("a", 1): values[0], ("b", 1): values[1]}, best).values()) == {Mark.NONE}


def test_a_policy_without_the_metric_is_not_marked_and_has_no_mean() -> None:
    assert marks({("a", 1): float("nan"), ("b", 1): 2.0, ("c", 1): 3.0}) == {
        "a": Mark.NONE, "b": Mark.BEST, "c": Mark.NONE
    }  # fmt: skip


def test_every_metric_can_be_had_of_a_summary_and_has_a_definition() -> None:
    summary = run("a", 1).summary
    assert all(np.isfinite(each.of(summary)) and each.definition for each in METRICS)
    assert len({each.name for each in METRICS}) == len(METRICS)


@pytest.mark.parametrize(
    ("seconds", "unit"), [(90.0, "seconds"), (120.0, "minutes"), (7200.0, "hours"), (172_800.0, "days")]
)
def test_seconds_are_told_in_a_unit_that_is_easily_read(seconds: float, unit: str) -> None:
    factor, name = readable_unit(Unit.SECONDS, [seconds, float("nan")])
    assert name == unit
    assert 1 <= seconds * factor < 120


def test_a_run_is_small_and_can_be_sent_between_processes() -> None:
    sent = pickle.dumps(run("fgd", 42))
    assert len(sent) < 100_000
    again = pickle.loads(sent)
    assert (again.policy, again.seed, again.summary) == ("fgd", 42, run("fgd", 42).summary)
