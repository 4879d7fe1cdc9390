"""What a replay found, as it is kept and shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from berth.console.what_if.question import Question

if TYPE_CHECKING:
    from berth.experiments.recorded_run import RecordedRun
    from berth.statistics import Summary

REAL, AS_IT_WAS, ASKED = "real", "as-it-was", "asked"


@dataclass(frozen=True, slots=True)
class Row:
    """What really happened, or one replay."""

    name: str
    """Of the policy; empty where it is not known."""
    kind: str
    """`real`, `as-it-was` (a replay of what ran) or `asked`."""
    wait_mean_s: float | None
    wait_median_s: float | None
    wait_p99_s: float | None
    completion_mean_s: float | None
    makespan_s: float | None
    gpu_allocation_pct: float | None
    unserved: int
    """Jobs that did not finish in the replay."""
    oracle: bool = False
    """Whether the policy chose by true run times: a bound, never the best among others."""
    wait_p90_s: float | None = None
    """None in answers that an earlier version kept."""


@dataclass(frozen=True, slots=True)
class Answer:
    """All of it but the pictures."""

    jobs: int
    left_out: int
    """Jobs of the period that never ran."""
    gpus: int
    """Of the cluster that was replayed."""
    real_gpus: int
    policy_that_ran: str
    rows: tuple[Row, ...]
    """What really happened first."""
    error_makespan_pct: float | None
    """How far the replay of what ran is from what really happened; None if the policy is not known."""
    error_wait_pct: float | None
    never_fitting: tuple[str, ...]
    """Some of the jobs that no node of the cluster can hold, in words."""
    elsewhere: int = 0
    """Jobs of the period that are of other clusters than the machine, and were not replayed."""
    error_p90_pct: float | None = None
    """How far the replay of what ran is from each week's real 90th percentile of waits, the median of all weeks."""
    weeks: int = 0
    believable: bool = True
    """Whether that is little enough."""

    @property
    def base(self) -> Row:
        """What the others are compared with: the replay of what ran, for it errs as they do."""
        return next((row for row in self.rows if row.kind == AS_IT_WAS), self.rows[0])

    @property
    def best(self) -> Row | None:
        """The asked policy with the shortest mean wait of those that served the most jobs."""
        asked = [row for row in self.rows if row.kind == ASKED and row.wait_mean_s is not None]
        rows = [row for row in asked if not row.oracle] or asked
        return min(rows, key=lambda row: (row.unserved, row.wait_mean_s), default=None)

    @property
    def shortest(self) -> tuple[Row, ...]:
        """The best; empty if another asked policy ties with it, or the replay of what ran is as good or better."""
        best = self.best
        if best is None:
            return ()
        rivals = [
            row
            for row in self.rows
            if row is not best
            and row.wait_mean_s is not None
            and (row.kind == AS_IT_WAS or (row.kind == ASKED and row.oracle == best.oracle))
        ]
        served = best.unserved, best.wait_mean_s
        return () if any((row.unserved, row.wait_mean_s) <= served for row in rivals) else (best,)


@dataclass(frozen=True, slots=True)
class SizesAnswer:
    """The smallest clusters that keep a number of today's."""

    sentences: tuple[str, ...]
    """What was found, and how far replays of this history err; that first, if they cannot be relied on."""
    jobs: int
    rows: tuple[tuple[str, ...], ...]
    """For each policy and GPU model what `berth.experiments.size.page.HEADINGS` name, without a cost."""


ANSWERS: TypeAdapter[Answer | SizesAnswer] = TypeAdapter(Answer | SizesAnswer)
"""Reads what was kept of an answer."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure of Plotly, as JSON."""

    name: str
    title: str
    figure: str


def answered(
    question: Question, history: Path, progress: Any = None
) -> tuple[Answer | SizesAnswer, list[Picture]]:
    """Replay, and say what came of it. Raises BerthError."""
    return (_sizes if question.keep else _replayed)(question, history, progress)


def _sizes(question: Question, history: Path, progress: Any) -> tuple[SizesAnswer, list[Picture]]:
    """Scan over sizes as `berth size` does."""
    from plotly.io.json import to_json_plotly

    from berth.experiments.returnable import run_and_trust
    from berth.experiments.size import keep_of, smallest_sizes
    from berth.experiments.size.page import cells, curve_of
    from berth.experiments.what_if import nodes_and_conditions
    from berth.history.store.folder import open_history
    from berth.plots import policy_styles
    from berth.traces.nodes import nodes_from_spec

    given = nodes_from_spec(question.cluster) if question.cluster else ()
    real, trust = run_and_trust(
        open_history(history, must_exist=True),
        since_ms=question.since_ms,
        until_ms=question.until_ms,
        nodes=given,
    )
    nodes, under = nodes_and_conditions(real, given, {"interference": question.interference})
    policies = list(dict.fromkeys([*([real.policy] if real.policy else []), *question.replayed]))
    found = smallest_sizes(
        real.jobs, nodes, policies, keep_of(question.keep), conditions=under, progress=progress
    )
    styles = policy_styles(policies)
    models = dict.fromkeys(curve.model for curve in found.curves)
    pictures = [
        Picture(f"sizes-{at}", model, to_json_plotly(curve_of(found, model, styles).to_dict()))
        for at, model in enumerate(models)
    ]
    sentences = [*found.sentences]
    sentences.insert(len(sentences) if trust.is_believable else 0, trust.sentence)
    answer = SizesAnswer(
        tuple(sentences),
        found.jobs,
        tuple(tuple(cells(each, "")[:-1]) for each in found.answers),
    )
    return answer, pictures


def _replayed(question: Question, history: Path, progress: Any) -> tuple[Answer, list[Picture]]:
    from berth.experiments.what_if import what_if
    from berth.history.store.folder import open_history
    from berth.policies.genetic.batch import grouped
    from berth.traces.nodes import nodes_from_spec

    found = what_if(
        open_history(history, must_exist=True),
        question.replayed,
        since_ms=question.since_ms,
        until_ms=question.until_ms,
        nodes=nodes_from_spec(question.cluster) if question.cluster else (),
        whole_gpus=question.whole_gpus,
        progress=progress,
        interference=question.interference,
    )
    real = found.real
    rows = [_row(real.policy, REAL, real, 0)]
    for run in found.runs:
        kind = AS_IT_WAS if found.as_it_was is not None and run is found.runs[0] else ASKED
        left = run.summary.jobs - run.summary.finished
        rows.append(_row(run.policy, kind, run.summary, left, run.oracle))
    error = found.error
    answer = Answer(
        jobs=len(real.jobs),
        left_out=real.left_out,
        gpus=sum(node.gpus for node in found.result.nodes),
        real_gpus=sum(node.gpus for node in real.nodes),
        policy_that_ran=real.policy,
        rows=tuple(rows),
        error_makespan_pct=None if error is None else _number(error[1]),
        error_wait_pct=None if error is None else _number(error[2]),
        never_fitting=tuple(grouped(found.result.never_fitting)),
        elsewhere=real.elsewhere,
        error_p90_pct=found.trust.error_pct,
        weeks=len(found.trust.weekly_errors_pct),
        believable=found.trust.is_believable,
    )
    return answer, _pictures(found)


def _row(policy: str, kind: str, run: Summary | RecordedRun, unserved: int, oracle: bool = False) -> Row:
    return Row(
        policy,
        kind,
        _number(run.waiting_time_s.mean),
        _number(run.waiting_time_s.median),
        _number(run.waiting_time_s.p99),
        _number(run.completion_time_s.mean),
        _number(run.makespan_s),
        _number(run.gpu_allocation_pct),
        unserved,
        oracle,
        _number(run.waiting_time_s.p90),
    )


def _pictures(found: Any) -> list[Picture]:
    from plotly.io.json import to_json_plotly

    from berth.experiments.compare import plots
    from berth.plots import policy_styles

    others = found.distributions
    styles = policy_styles([run.policy for run in others], {run.policy for run in found.runs if run.oracle})
    figures = (
        ("waiting", "Waiting times", plots.waiting_cdf(others, styles)),
        ("completion", "Completion times", plots.completion_cdf(others, styles)),
        ("queue", "Jobs waiting over time", plots.queue_over_time(found.runs, styles)),
        ("allocation", "GPU allocation over time", plots.allocation_over_time(found.runs, styles)),
    )
    return [Picture(name, title, to_json_plotly(figure.to_dict())) for name, title, figure in figures]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
