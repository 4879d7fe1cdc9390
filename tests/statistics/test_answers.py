"""What a comparison says that it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from berth.statistics import Run, answers, best_sentence
from tests.experiments.compare.runs import made_runs


@cache
def like() -> Run:
    """A run, of which each test changes some numbers."""
    return made_runs(seeds=(1,))[0]


def runs(waits_h: dict[str, Sequence[float]], allocation_pct: float = 50.0, unfinished: int = 0) -> list[Run]:
    """A run for each mean wait, of a policy and a seed; all else is the same."""
    summary = replace(
        like().summary, gpu_allocation_pct=allocation_pct, gpu_allocation_arriving_pct=allocation_pct,
        finished=like().summary.jobs - unfinished,
    )  # fmt: skip
    return [
        replace(
            like(), policy=policy, seed=seed,
            summary=replace(summary, waiting_time_s=replace(summary.waiting_time_s, mean=wait_h * 3600)),
        )
        for policy, waits in waits_h.items()
        for seed, wait_h in enumerate(waits)
    ]  # fmt: skip


def test_the_best_is_named_with_its_interval_and_the_policies_that_may_be_as_good() -> None:
    said, *_ = answers(runs({"a": [4, 6, 5], "b": [1.0, 2, 3], "c": [1.4, 1.9, 3]}))
    assert said == (
        "b has the shortest mean wait: 2.0 ± 2.5 hours, against 5.0 ± 2.5 with a; over"
        " these seeds it does not differ significantly from c."
    )


def test_where_the_seeds_tell_nothing_apart_no_winner_is_named() -> None:
    said, *_ = answers(runs({"a": [4, 1, 5], "b": [1, 5, 3]}))
    assert said == "The seeds do not show that any policy has shorter waits: b 3.0 ± 5.0, a 3.3 ± 5.2 hours."


def test_equal_policies_are_called_equal_and_one_alone_is_compared_with_nothing() -> None:
    assert answers(runs({"a": [3], "b": [3]})) == (
        "All policies have the same mean wait: 3.0 hours.",
        "All policies have the same GPU allocation: 50.0 %.",
    )
    assert answers(runs({"a": [3]}, unfinished=1)) == (
        "Under a, the mean wait is 3.0 hours and the GPU allocation is 50.0 %.",
        f"1 of {like().summary.jobs} jobs does not finish.",
    )
    assert answers(()) == ()


@pytest.mark.parametrize(("allocation_pct", "warned"), [(0.23, True), (4.9, True), (5.1, False)])
def test_a_nearly_empty_cluster_is_said_first(allocation_pct: float, warned: bool) -> None:
    said = answers(runs({"a": [3], "b": [4]}, allocation_pct))
    assert said[0].startswith("The cluster is nearly empty") is warned
    assert ("--compress" in said[0]) is warned


def test_jobs_that_do_not_finish_are_said() -> None:
    both = [*runs({"a": [3]}, unfinished=2), *runs({"b": [3]}, unfinished=5)]
    jobs = like().summary.jobs
    assert answers(both)[-1] == f"Of {jobs} jobs 2 do not finish under a, and 5 under b."
    assert (
        answers(runs({"a": [3], "b": [3]}, unfinished=4))[-1]
        == f"Under every policy 4 of {jobs} jobs do not finish."
    )


def test_the_best_policy_is_told_with_those_that_cannot_be_told_from_it() -> None:
    values = {"fgd": [90.0, 91.0, 92.0], "fifo": [80.0, 81.5, 82.0], "sjf": [89.5, 91.5, 92.0]}
    assert best_sentence(values, "holds the most GPUs", "% of them", least=False) == (
        "fgd holds the most GPUs: 91.0 ± 2.5 % of them, against 81.2 ± 2.6 with fifo; "
        "over these seeds it does not differ significantly from sjf."
    )
    times = {"a": [10.0, 20.0], "b": [9.0, 30.0]}
    assert best_sentence(times, "ends soonest", "s", least=True, pairs="batches") == (
        "The batches do not show which policy ends soonest: a 15.0, b 19.5 s."
    )
    assert best_sentence({"a": [1.0], "b": [2.0]}, "is first", "s", least=True) == (
        "a is first: 1.00 s, against 2.00 with b."
    )
    assert best_sentence({"a": [1.0], "b": [1.0]}, "is first", "s", least=True) == (
        "All policies have the same: 1.00 s."
    )
    assert best_sentence({"a": [1.0]}, "is first", "s", least=True) == ""
