"""How policies stand against each other: means over seeds with intervals, and which is best; as rows of a
table and in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from berth.counts import counted
from berth.statistics.metrics import Metric, Unit, headlines_of, metrics_of, readable_unit
from berth.statistics.run import Run
from berth.statistics.spread import Interval, confidence_interval_95, paired_difference_95


class Mark(Enum):
    """Where a policy stands in one metric."""

    NONE = ""
    BEST = "best"
    LIKE_BEST = "like best"
    """Not significantly worse than the best: the 95 % interval of the paired difference contains 0."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy in one metric."""

    policy: str
    interval: Interval
    """Over the seeds on which the metric is defined."""
    mark: Mark
    oracle: bool = False
    """Whether it chose by true run times: a bound, which is never marked."""

    @property
    def label(self) -> str:
        """The policy's name, and that it is an oracle if it is one."""
        return f"{self.policy} (oracle)" if self.oracle else self.policy


def standings(runs: Sequence[Run], metric: Metric) -> tuple[Standing, ...]:
    """The policies in one metric, in the order in which the runs first name them.

    No policy is marked if all are equal or the metric has no better direction, and no oracle beside others.
    """
    oracles = {run.policy for run in runs if run.oracle}
    values: dict[str, dict[int, float]] = {}
    for run in runs:
        by_seed = values.setdefault(run.policy, {})
        if math.isfinite(value := metric.of(run.summary)):
            by_seed[run.seed] = value
    intervals = {name: confidence_interval_95(list(by_seed.values())) for name, by_seed in values.items()}
    ranked = (intervals.keys() - oracles) or intervals.keys()
    means = {name: intervals[name].mean for name in intervals if name in ranked and intervals[name].count}
    best = ""
    if metric.best is not None and len(set(means.values())) > 1:
        wanted = metric.best(means.values())
        best = next(name for name, mean in means.items() if mean == wanted)
    return tuple(
        Standing(name, interval, _mark(name, best, means, values), name in oracles)
        for name, interval in intervals.items()
    )


def _mark(
    name: str, best: str, means: Mapping[str, float], values: Mapping[str, Mapping[int, float]]
) -> Mark:
    if not best or name not in means:
        return Mark.NONE
    if means[name] == means[best]:
        return Mark.BEST
    seeds = sorted(values[name].keys() & values[best].keys())
    difference = paired_difference_95(
        [values[name][seed] for seed in seeds], [values[best][seed] for seed in seeds]
    )
    return Mark.LIKE_BEST if difference.low <= 0 <= difference.high else Mark.NONE


@dataclass(frozen=True, slots=True)
class Cell:
    """A mean, with half of its 95 % interval where there is one."""

    mean: str
    half: str
    mark: str
    """`best`, `like best` or nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of every policy."""

    metric: str
    unit: str
    definition: str
    better: str
    """`↑` if more is better, `↓` if less is, and nothing if neither is."""
    cells: tuple[Cell, ...]

    @property
    def undefined(self) -> bool:
        """Whether no policy has this metric."""
        return all(cell.mean == "–" for cell in self.cells)

    @property
    def same(self) -> bool:
        """Whether several policies have it and all have the same."""
        return len(self.cells) > 1 and len({(cell.mean, cell.half) for cell in self.cells}) == 1


def table_rows(runs: Sequence[Run]) -> tuple[Row, ...]:
    """A row for each metric; its cells are the policies in the order in which the runs first name them."""
    return tuple(_row(runs, metric) for metric in metrics_of(run.summary for run in runs))


def _row(runs: Sequence[Run], metric: Metric) -> Row:
    policies = standings(runs, metric)
    means = [standing.interval.mean for standing in policies]
    factor, unit = readable_unit(metric.unit, means)
    largest = max((abs(mean * factor) for mean in means if math.isfinite(mean)), default=0.0)
    whole = metric.unit is Unit.COUNT and all(
        not math.isfinite(mean) or mean == round(mean) for mean in means
    )
    decimals = 0 if whole or largest >= 1000 else 1 if largest >= 10 else 2
    cells = tuple(_cell(standing.interval, standing.mark, factor, decimals) for standing in policies)
    better = "↑" if metric.best is max else "↓" if metric.best is min else ""
    return Row(metric.name, unit, metric.definition, better, cells)


def _cell(interval: Interval, mark: Mark, factor: float, decimals: int) -> Cell:
    if not interval.count:
        return Cell("–", "", "")
    half = f"{(interval.high - interval.mean) * factor:,.{decimals}f}" if interval.count > 1 else ""
    return Cell(f"{interval.mean * factor:,.{decimals}f}", half, mark.value)


NEARLY_EMPTY_PCT = 5.0
"""Below this GPU allocation policies hardly differ, because almost every job starts at once."""
NAMED = 3
"""At most this many policies are named in a sentence."""

_WORDS = {
    "GPU allocation": ("holds the most GPUs", "holds more GPUs"),
    "GPU use": ("makes the most use of the GPUs", "makes more use of the GPUs"),
    "Mean wait": ("has the shortest mean wait", "has shorter waits"),
}
"""What the best policy does, and what no policy does if no difference is significant."""


def answers(runs: Sequence[Run]) -> tuple[str, ...]:
    """One sentence each on waiting, on the GPUs and on jobs that did not finish; on both together for a single policy.

    A warning comes first if the cluster was nearly empty.
    """
    policies = list(dict.fromkeys(run.policy for run in runs))
    headlines = {metric.name: metric for metric in headlines_of(run.summary for run in runs)}
    sentences = [_nearly_empty(runs)]
    if len(policies) > 1:
        sentences.append(_answer(runs, headlines["Mean wait"]))
        sentences.append(_answer(runs, headlines.get("GPU use") or headlines["GPU allocation"]))
    elif policies:
        sentences.append(
            _alone(runs, headlines["Mean wait"], headlines.get("GPU use") or headlines["GPU allocation"])
        )
    if policies:
        sentences.append(_unfinished(runs))
    return tuple(sentence for sentence in sentences if sentence)


def lead(runs: Sequence[Run]) -> str:
    """One sentence with one number: how many times the waits of the policy named first those of the best are.

    Empty for a single policy, a nearly empty cluster and jobs that did not finish; also if the best is the first, does
    not differ significantly from it, or never waits.
    """
    if not runs or _nearly_empty(runs) or _unfinished(runs):
        return ""
    wait = next(metric for metric in headlines_of(run.summary for run in runs) if metric.name == "Mean wait")
    found = [one for one in standings(runs, wait) if one.interval.count and not one.oracle]
    best = next((one for one in found if one.mark is Mark.BEST), None)
    if best is None or found[0].mark is not Mark.NONE or not best.interval.mean > 0:
        return ""
    times = found[0].interval.mean / best.interval.mean
    shown = f"{times:,.0f}" if times >= 9.5 else f"{times:.1f}"
    return f"Under {found[0].policy} jobs wait {shown} times as long as under {best.policy}."


def best_sentence(
    values: Mapping[str, Sequence[float]], does_best: str, unit: str, *, least: bool, pairs: str = "seeds"
) -> str:
    """Which policy is best in one figure, the worst one by comparison, and those that cannot be told from the best.

    `values` has each policy's figures over the same seeds, or whatever else `pairs` names; `does_best` is what the best
    policy does, such as `holds the most GPUs`. Empty for a single policy.
    """
    known = {name: list(each) for name, each in values.items() if all(math.isfinite(one) for one in each)}
    if len(known) < 2 or not all(known.values()):
        return ""
    ordered = sorted(known, key=lambda name: sum(known[name]) * (1 if least else -1))
    best, worst = ordered[0], ordered[-1]
    means = {name: confidence_interval_95(each) for name, each in known.items()}

    def figure(name: str) -> str:
        interval = means[name]
        decimals = 0 if abs(interval.mean) >= 100 else 1 if abs(interval.mean) >= 10 else 2
        half = interval.high - interval.mean
        shown = f" ± {half:,.{decimals}f}" if interval.count > 2 and math.isfinite(half) else ""
        return f"{interval.mean:,.{decimals}f}{shown}"

    if means[best].mean == means[worst].mean:
        return f"All policies have the same: {figure(best)} {unit}."
    alike = [name for name in ordered[1:] if _inconclusive(known[best], known[name])]
    if worst in alike:
        both = f"{best} {figure(best)}, {worst} {figure(worst)} {unit}"
        return f"The {pairs} do not show which policy {does_best}: {both}."
    sentence = f"{best} {does_best}: {figure(best)} {unit}, against {figure(worst)} with {worst}"
    return sentence + _not_significant(alike, pairs)


def _not_significant(alike: Sequence[str], pairs: str = "seeds") -> str:
    """The end of a sentence about the best policy, with the policies from which its difference may be chance."""
    return f"; over these {pairs} it does not differ significantly from {_listed(alike)}." if alike else "."


def _inconclusive(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the paired difference may be zero; of a single pair only equality tells."""
    found = paired_difference_95(one, other)
    return found.mean == 0 if found.count < 2 else found.low <= 0 <= found.high


def _nearly_empty(runs: Sequence[Run]) -> str:
    held = [run.summary.gpu_allocation_arriving_pct for run in runs if run.summary.finished]
    most = max((pct for pct in held if math.isfinite(pct)), default=math.nan)
    if not most < NEARLY_EMPTY_PCT:
        return ""
    return (
        f"The cluster is nearly empty: while jobs arrive, at most {most:.2g} % of its GPU capacity is held, so policies"
        " hardly differ. Compress the arrivals (--compress 10) or use a smaller cluster (--cluster)."
    )


def _answer(runs: Sequence[Run], metric: Metric) -> str:
    """Which policy is best in one metric, the worst by comparison, and those that are not significantly worse."""
    counted = [standing for standing in standings(runs, metric) if standing.interval.count]
    does_best, does_better = _WORDS[metric.name]
    found = [standing for standing in counted if not standing.oracle] or counted
    if len(counted) < 2:
        return ""
    factor, unit = readable_unit(metric.unit, [standing.interval.mean for standing in counted])
    bound = _bound([standing for standing in counted if standing not in found], metric, factor)
    if len(found) < 2:
        alone = (
            f"Under {found[0].policy} the {in_sentence(metric.name)} is {_figure(found[0], factor)} {unit}"
        )
        return f"{alone}{bound}."
    ordered = sorted(found, key=lambda standing: standing.interval.mean, reverse=metric.best is max)
    best, worst = ordered[0], ordered[-1]
    if all(standing.mark is Mark.NONE for standing in found):
        return f"All policies have the same {in_sentence(metric.name)}: {_figure(best, factor)} {unit}."
    alike = [standing.policy for standing in ordered[1:] if standing.mark is not Mark.NONE]
    behind = [standing for standing in ordered if standing.mark is Mark.NONE]
    if not behind:
        return (
            f"The seeds do not show that any policy {does_better}: {best.policy} {_figure(best, factor)},"
            f" {worst.policy} {_figure(worst, factor)} {unit}."
        )
    last = behind[-1]
    sentence = f"{best.policy} {does_best}: {_figure(best, factor)} {unit}"
    sentence += f", against {_figure(last, factor)} with {last.policy}"
    return sentence + bound + _not_significant(alike)


def _bound(oracles: Sequence[Standing], metric: Metric, factor: float) -> str:
    """What the best oracle reaches, in brackets; empty without one."""
    if not oracles:
        return ""
    best = min(oracles, key=lambda one: one.interval.mean * (-1 if metric.best is max else 1))
    return f" ({best.label}: {_figure(best, factor)})"


def _alone(runs: Sequence[Run], wait: Metric, held: Metric) -> str:
    """How long jobs wait under the only policy, and how much of the GPUs they hold or use."""
    parts = []
    for metric in (wait, held):
        for standing in standings(runs, metric):
            if standing.interval.count:
                factor, unit = readable_unit(metric.unit, [standing.interval.mean])
                parts.append(f"the {in_sentence(metric.name)} is {_figure(standing, factor)} {unit}")
    return f"Under {runs[0].policy}, {' and '.join(parts)}." if parts else ""


def _unfinished(runs: Sequence[Run]) -> str:
    shares: dict[str, list[int]] = {}
    for run in runs:
        shares.setdefault(run.policy, []).append(run.summary.jobs - run.summary.finished)
    worst = max(shares, key=lambda policy: sum(shares[policy]))
    if not any(shares[worst]):
        return ""
    means = {policy: sum(counts) / len(counts) for policy, counts in shares.items()}
    least = min(means, key=lambda policy: means[policy])
    jobs = runs[0].summary.jobs
    if len(means) == 1:
        return f"{means[worst]:,.4g} of {counted(jobs, 'job')} {'does' if means[worst] == 1 else 'do'} not finish."
    if means[least] == means[worst]:
        return f"Under every policy {means[worst]:,.4g} of {counted(jobs, 'job')} do not finish."
    few, many = f"{means[least]:,.4g}", f"{means[worst]:,.4g}"
    return f"Of {counted(jobs, 'job')} {few} do not finish under {least}, and {many} under {worst}."


def _figure(standing: Standing, factor: float) -> str:
    mean, high = standing.interval.mean * factor, standing.interval.high * factor
    decimals = 0 if abs(mean) >= 100 else 1 if abs(mean) >= 1 else 2
    half = f" ± {high - mean:,.{decimals}f}" if standing.interval.count > 1 else ""
    return f"{mean:,.{decimals}f}{half}"


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:NAMED])
    if len(names) > NAMED:
        shown.append(f"{len(names) - NAMED} others")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def in_sentence(name: str) -> str:
    """A metric's name within a sentence: `mean wait`, but `GPU use` and `Jain's index by user`."""
    return name if name[:2].isupper() or name.startswith("Jain") else name[0].lower() + name[1:]
