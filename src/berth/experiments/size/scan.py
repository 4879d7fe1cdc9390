"""The smallest cluster that keeps a number of today's: each size is simulated, all on the same jobs and seeds.

Waits do not shrink steadily as nodes are added, so that a bisection may answer wrongly. Sizes are therefore looked at
from today's downwards until one fails, and the answer is the size from which on all that were looked at keep the
number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np

from berth.arrays import BoolArray, FloatArray, IntArray
from berth.counts import counted
from berth.errors import SettingError
from berth.experiments.compare.conditions import AS_THE_TRACE_SAYS, Conditions
from berth.experiments.compare.parallel import lasting_processes, run_all
from berth.experiments.compare.sweep import Task
from berth.experiments.size.clusters import Resized, models_of, resized
from berth.experiments.size.served import Measure, Served, measure_named, served
from berth.experiments.weeks import WEEK_MS
from berth.model import Job, Node
from berth.policies import Progress

AT_ONCE = 4
"""Sizes of one policy that are looked at together. What lies below the first that fails takes longest, and only widens
the interval. It is the same for any number of processes, so that the interval is."""
MORE_STEP_PCT, MOST_MORE_PCT = 5, 100
"""Loads are looked at in such steps above today's until one fails, at most up to the second; then each per cent between
the last two."""
DRAWS = 100
"""How often weeks are drawn again for an interval."""
FEWEST_WEEKS = 3
"""Fewer weeks tell nothing of how weeks differ."""
FEWEST_JOBS = 20
"""Users or partitions of fewer jobs have one target together."""
FEWEST_TO_RELY_ON = 100
"""Of fewer jobs, fewer than ten lie beyond the 90th percentile."""
HOUR_MS = 3_600_000
_Key = tuple[str, str, int]
"""A policy, a GPU model and its nodes; or a policy, no model and the load in per cent above today's."""


@dataclass(frozen=True, slots=True)
class Keep:
    """What is to be kept."""

    measure: Measure
    target: float | None = None
    """At most this; None: what the first policy has today."""
    by: str = ""
    """`user` or `partition`: for each of them apart."""


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """One policy on one size."""

    cluster: Resized
    value: float
    """The number that is to be kept, over all jobs; without end where too many are not served."""
    unserved: int
    """Jobs that did not finish."""
    first_unserved: tuple[str, ...]
    keeps: bool
    run: Served


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One policy on all sizes of one GPU model that were looked at, the smallest first."""

    policy: str
    model: str
    today: int
    """Nodes of the model."""
    points: tuple[Point, ...]

    @property
    def smallest(self) -> Point | None:
        """The size from which on every size keeps the number; None if even the largest does not."""
        found = None
        for point in reversed(self.points):
            if not point.keeps:
                break
            found = point
        return found

    @property
    def at_today(self) -> Point:
        """Today's size."""
        return next(point for point in self.points if point.cluster.count == self.today)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one policy saves of one GPU model."""

    policy: str
    model: str
    today: int
    nodes: int | None
    """The smallest number of nodes; None if none keeps the number."""
    gpus_returned: int
    """Below 0 where there are too few today."""
    gpu_hours_a_week: float
    cost_a_week: float | None
    """None without prices."""
    value: float
    low: int | None
    """The 80 % interval of `nodes` over weeks drawn again; None where there are too few weeks."""
    high: int | None
    """None also where in a tenth of the draws no size was large enough."""
    low_is_open: bool
    """Whether `low` is the smallest size that was looked at, above one node: the low end may lie below it."""


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """What a scan found."""

    keep: Keep
    target: float
    """What was kept, over all jobs."""
    targets: Mapping[str | None, float]
    """By user or partition, where it was kept for each; None: those of few jobs together."""
    nodes: tuple[Node, ...]
    jobs: int
    step: int
    """Sizes above the smallest were looked at in steps of this many nodes."""
    curves: tuple[Curve, ...]
    answers: tuple[Answer, ...]
    currency: str = ""
    most_unserved: int = 0
    """Jobs that the first policy does not finish today."""
    more_jobs_pct: Mapping[str, int] | None = None
    """By policy how many per cent more jobs today's cluster takes if they come as much faster; MOST_MORE_PCT: that many
    or more. Without policies that do not keep the number today; None if it was not asked for."""

    @property
    def weeks(self) -> int:
        """From the first submission to the last; the last week may be cut short."""
        return _weeks(self.curves[0].points[0].run)

    @property
    def caution(self) -> str:
        """What a size to rely on would need; empty if there is enough."""
        if self.jobs >= FEWEST_TO_RELY_ON and self.weeks >= FEWEST_WEEKS:
            return ""
        return (
            f"Caution: this rests on {counted(self.jobs, 'job')} in {counted(self.weeks, 'week')}; a size is reliable"
            f" only from {FEWEST_TO_RELY_ON} jobs in {FEWEST_WEEKS} weeks on."
        )

    @property
    def best(self) -> Answer:
        """The answer that returns the most GPUs."""
        return max(self.answers, key=lambda each: (each.nodes is not None, each.gpus_returned))

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, the most important first."""
        return tuple(_sentences(self))


def keep_of(text: str, by: str = "") -> Keep:
    """What `p90-wait`, `p90-wait=30m` or `slowdown=4` ask to keep. Raises SettingError for what is none of these."""
    name, equals, limit = text.partition("=")
    measure = measure_named(name.strip())
    if by not in ("", "user", "partition"):
        raise SettingError(f"sizes are told by user or by partition, not by '{by}'")
    if not equals:
        return Keep(measure, None, by)
    scale = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number, unit = limit.strip(), 1
    if measure.unit == "s" and number[-1:] in scale:
        number, unit = number[:-1], scale[number[-1]]
    try:
        target = float(number) * unit
    except ValueError:
        target = math.nan
    if not 0 <= target < math.inf:
        such_as = f"{measure.name}={'30m' if measure.unit else '4'}"
        raise SettingError(f"'{text}' has no limit to keep; expected 0 or more, such as {such_as}")
    return Keep(measure, target, by)


def smallest_sizes(
    jobs: Sequence[Job],
    nodes: Sequence[Node],
    policies: Sequence[str],
    keep: Keep,
    *,
    conditions: Conditions = AS_THE_TRACE_SAYS,
    step: int | None = None,
    seed: int = 0,
    processes: int = 1,
    progress: Progress | None = None,
    more_jobs: bool = False,
) -> Sizes:
    """Simulate each policy on ever fewer nodes of each GPU model, and find the fewest that keep the number.

    The first policy is today's: without a target it says what is to be kept. `step` is by how many nodes sizes differ
    until one fails; between that and the next larger one every size is looked at. By default it is a fortieth of the
    nodes. Jobs that today finish and on a smaller cluster do not, make that size fail. With `more_jobs`, policies that
    keep the number today are also simulated under ever more load. Raises SettingError where the cluster has no GPUs or
    there are no jobs.
    """
    models = models_of(nodes)
    if not jobs:
        raise SettingError("there are no jobs to replay; expected at least one")
    if not models:
        raise SettingError("no node has a GPU; expected a cluster such as 10x8:V100")
    scan = _Scan(
        tuple(jobs), tuple(nodes), tuple(dict.fromkeys(policies)), keep, conditions, seed, processes, progress
    )
    counts = {model: resized(nodes, model, 0).rows for model in models}
    today = {model: len(nodes) - len(rows) for model, rows in counts.items()}
    steps = {model: step or max(1, today[model] // 40) for model in models}
    with lasting_processes(processes):
        scan.look(
            (policy, resized(nodes, model, today[model])) for policy in scan.policies for model in models
        )
        scan.set_targets(models[0], today[models[0]])
        while wanted := [
            (policy, resized(nodes, model, count))
            for policy in scan.policies
            for model in models
            for count in scan.next_counts(policy, model, today[model], steps[model])
        ]:
            scan.look(wanted)
        curves = tuple(
            Curve(policy, model, today[model], scan.points(policy, model))
            for policy in scan.policies
            for model in models
        )
        of_today = {curve.policy: curve.at_today.keeps for curve in curves if curve.model == models[0]}
        more = {name: scan.more_jobs_pct(name) for name, keeps in of_today.items() if more_jobs and keeps}
    prices = conditions.prices
    answers = tuple(_answer(curve, scan) for curve in curves)
    return Sizes(
        keep,
        scan.target,
        scan.targets,
        tuple(nodes),
        len(jobs),
        max(steps.values()),
        curves,
        answers,
        prices.currency if prices else "",
        scan.most_unserved,
        more if more_jobs else None,
    )


@dataclass(slots=True, eq=False)
class _Scan:
    """What has been looked at so far."""

    jobs: tuple[Job, ...]
    nodes: tuple[Node, ...]
    policies: tuple[str, ...]
    keep: Keep
    conditions: Conditions
    seed: int
    processes: int
    progress: Progress | None
    target: float = math.inf
    targets: Mapping[str | None, float] = field(default_factory=dict)
    """By user or partition; None: those of few jobs together."""
    most_unserved: int = 0
    first: Served | None = None
    """The first policy on today's cluster."""
    seen: dict[tuple[str, str], dict[int, tuple[Resized, Served]]] = field(default_factory=dict)
    done: int = 0

    def look(self, wanted: Iterable[tuple[str, Resized]]) -> None:
        """Simulate policies on clusters."""
        clusters = {(policy, one.model, one.count): one for policy, one in wanted}
        tasks = [self._task(key, one.nodes, one.under(self.conditions)) for key, one in clusters.items()]
        for key, run in self._runs(tasks):
            policy, model, count = key
            self.seen.setdefault((policy, model), {})[count] = (clusters[key], run)

    def more_jobs_pct(self, policy: str) -> int:
        """How many per cent more jobs today's cluster takes with a policy that keeps the numbers today."""
        keeps = {0: True}
        while wanted := _next_loads(keeps):
            tasks = [
                self._task(
                    (policy, "", pct),
                    self.nodes,
                    replace(self.conditions, compress=self.conditions.compress * (1 + pct / 100)),
                )
                for pct in wanted
            ]
            for (_, _, pct), run in self._runs(tasks):
                keeps[pct] = self.keeps(run)
        return min((pct - 1 for pct, keeps_it in keeps.items() if not keeps_it), default=max(keeps))

    def _task(self, key: _Key, nodes: tuple[Node, ...], conditions: Conditions) -> Task:
        measure = partial(_keyed, key, self.keep.by)
        return Task(self.jobs, nodes, key[0], self.seed, conditions, measure=measure)

    def _runs(self, tasks: Sequence[Task]) -> Iterator[tuple[_Key, Served]]:
        before, total = self.done, self.done + len(tasks)

        def progress(done: float, of: float) -> None:
            if self.progress is not None:
                self.progress(before + done, total)

        for result in run_all(tasks, self.processes, progress):
            yield cast("tuple[_Key, Served]", result.measured)
        self.done = total

    def set_targets(self, model: str, today: int) -> None:
        """Today's numbers are those to keep, unless a target was given."""
        measure = self.keep.measure
        run = self.first = self.seen[self.policies[0], model][today][1]
        given = self.keep.target
        self.target = measure.of(measure.values(run)) if given is None else given
        self.most_unserved = int(run.unserved.sum())
        self.targets = (
            {name: value if given is None else given for name, value in _by_group(run, measure).items()}
            if self.keep.by
            else {}
        )

    def keeps(self, run: Served) -> bool:
        """Whether a run keeps the numbers."""
        if int(run.unserved.sum()) > self.most_unserved:
            return False
        measure = self.keep.measure
        if measure.of(measure.values(run)) > self.target:
            return False
        return not self.keep.by or all(
            value <= self.targets[name] for name, value in _by_group(run, measure).items()
        )

    def points(self, policy: str, model: str) -> tuple[Point, ...]:
        """What was looked at, the smallest size first."""
        measure = self.keep.measure
        return tuple(
            Point(
                one,
                measure.of(measure.values(run)),
                int(run.unserved.sum()),
                run.first_unserved,
                self.keeps(run),
                run,
            )
            for _, (one, run) in sorted(self.seen[policy, model].items())
        )

    def next_counts(self, policy: str, model: str, today: int, step: int) -> list[int]:
        """The sizes to look at next: down until one fails, or up until one keeps, then all in between."""
        there = self.seen[policy, model]
        keeps = {count: self.keeps(run) for count, (_, run) in there.items()}
        most, least = max(keeps), min(keeps)
        failing = max((count for count, keeps_it in keeps.items() if not keeps_it), default=None)
        if failing is None:
            return [
                count for count in range(least - step, least - step * (AT_ONCE + 1), -step) if count >= 1
            ] or ([1] if least > 1 else [])
        if failing == most:
            return [
                count for count in range(most + step, most + step * (AT_ONCE + 1), step) if count <= 2 * today
            ]
        above = min(count for count in keeps if count > failing)
        return list(range(failing + 1, above))


def _by_group(run: Served, measure: Measure) -> dict[str | None, float]:
    """The number of each group, and under None that of all small ones together, unless these too have few jobs."""
    values, small = measure.values(run), _is_small(run)
    found: dict[str | None, float] = {
        name: measure.of(values[run.group == at]) for at, name in enumerate(run.groups) if not small[at]
    }
    others = small[run.group]
    if int(others.sum()) >= FEWEST_JOBS:
        found[None] = measure.of(values[others])
    return found


def _is_small(run: Served) -> BoolArray:
    """Of each group whether it has too few jobs for a target of its own."""
    return np.bincount(run.group, minlength=len(run.groups)) < FEWEST_JOBS


def _next_loads(keeps: Mapping[int, bool]) -> list[int]:
    """The loads to look at next, in per cent above today's: up until one fails, then all below the first that does."""
    failing = min((pct for pct, keeps_it in keeps.items() if not keeps_it), default=None)
    if failing is None:
        last = max(keeps)
        above = range(last + MORE_STEP_PCT, last + MORE_STEP_PCT * (AT_ONCE + 1), MORE_STEP_PCT)
        return [pct for pct in above if pct <= MOST_MORE_PCT]
    last_step = (failing - 1) // MORE_STEP_PCT * MORE_STEP_PCT
    return [pct for pct in range(last_step + 1, failing) if pct not in keeps]


def _keyed(
    key: _Key, by: str, columns: object, nodes: Sequence[Node], jobs: Sequence[Job]
) -> tuple[_Key, Served]:
    return key, served(columns, nodes, jobs, by=by)  # type: ignore[arg-type]


def _answer(curve: Curve, scan: _Scan) -> Answer:
    conditions = scan.conditions
    smallest, now = curve.smallest, curve.at_today
    point = smallest or curve.points[-1]
    returned = now.cluster.gpus - point.cluster.gpus if smallest else 0
    hours = 7 * 24.0 * returned
    price = None
    if conditions.prices is not None:
        of = conditions.prices.gpu_hour
        price = hours * of.get(curve.model.lower(), of.get("default", 0.0))
    low, high = (None, None) if scan.keep.by else _interval(curve, scan)
    return Answer(
        curve.policy, curve.model, curve.today, smallest.cluster.count if smallest else None, returned, hours, price,
        point.value, low, high, low is not None and 1 < low == curve.points[0].cluster.count,
    )  # fmt: skip


def _interval(curve: Curve, scan: _Scan) -> tuple[int | None, int | None]:
    """The 80 % interval of the smallest size over weeks drawn again, the same weeks for every size and for the first
    policy on today's cluster, which tells what is to be kept unless a target was given."""
    first, points = cast("Served", scan.first), curve.points
    week, weeks = first.submit_ms // WEEK_MS, _weeks(first)
    if weeks < FEWEST_WEEKS:
        return None, None
    measure = scan.keep.measure

    def ordered(run: Served) -> tuple[FloatArray, IntArray]:
        values = measure.values(run)
        order = np.argsort(values, kind="stable")
        return values[order], week[order]

    today = ordered(first)
    sizes = [(point, *ordered(point.run)) for point in reversed(points)]
    draw = np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        often = np.bincount(draw.integers(0, weeks, weeks), minlength=weeks)
        target = measure.weighted(today[0], often[today[1]]) if scan.keep.target is None else scan.target
        smallest = math.inf
        for point, values, of_week in sizes:
            if point.unserved > scan.most_unserved or measure.weighted(values, often[of_week]) > target:
                break
            smallest = point.cluster.count
        found.append(smallest)
    low, high = np.quantile(found, (0.1, 0.9), method="nearest")
    return (int(low) if math.isfinite(low) else None), (int(high) if math.isfinite(high) else None)


def _weeks(run: Served) -> int:
    return int(run.submit_ms.max(initial=0)) // WEEK_MS + 1


def _sentences(sizes: Sizes) -> Iterator[str]:
    from berth.history.values.durations import duration_text

    measure, by = sizes.keep.measure, sizes.keep.by

    def in_words(value: float) -> str:
        return duration_text(value) if measure.unit == "s" and math.isfinite(value) else f"{value:.2f}"

    def nodes(number: int, model: str) -> str:
        kind = f"{model} " if model and several else ""
        return counted(number, f"{kind}node")

    def above(value: float, limit: float) -> str:
        number, most = in_words(value), in_words(limit)
        return f"a little above {most}" if number == most else f"{number}, above {most}"

    best = sizes.best
    several = len({answer.model for answer in sizes.answers}) > 1
    target = in_words(sizes.target)
    kept = f"the {measure.in_words} at {target}"
    if sizes.targets:
        ends = dict.fromkeys((in_words(min(sizes.targets.values())), in_words(max(sizes.targets.values()))))
        kept = (
            f"every {by}'s {measure.in_words} at today's ({' to '.join(ends)}), and that of all jobs at {target}"
            if sizes.keep.target is None
            else f"every {by}'s {measure.in_words}, and that of all jobs, at {target}"
        )
    if best.nodes is None:
        yield f"No size up to {nodes(2 * best.today, best.model)} keeps {kept}."
    elif best.gpus_returned > 0:
        cost = (
            ""
            if best.cost_a_week is None
            else f" ({best.cost_a_week:,.0f} {sizes.currency})".replace(" )", ")")
        )
        yield (
            f"With {best.policy}, {best.nodes:,} of {nodes(best.today, best.model)}"
            f" {'keeps' if best.nodes == 1 else 'keep'} {kept}:"
            f" {counted(best.gpus_returned, 'GPU')} could be returned, {best.gpu_hours_a_week:,.0f} GPU-hours a"
            f" week{cost}."
        )
    elif best.gpus_returned < 0:
        yield (
            f"To keep {kept}, {best.policy} needs {nodes(best.nodes, best.model)};"
            f" there {'is' if best.today == 1 else 'are'} {best.today:,}."
        )
    elif best.today == 1:
        yield f"No node can be returned: today's is the only {best.model} one.".replace("  ", " ")
    else:
        curve = next(each for each in sizes.curves if (each.policy, each.model) == (best.policy, best.model))
        fewer = next(each for each in curve.points if each.cluster.count == best.today - 1)
        if fewer.unserved > sizes.most_unserved:
            why = (
                f"{counted(fewer.unserved, 'job does', 'jobs do')} not finish, today {sizes.most_unserved:,}"
            )
        elif fewer.value > sizes.target:
            why = f"the {measure.in_words} is {above(fewer.value, sizes.target)}"
        else:
            now = _by_group(fewer.run, measure)
            rose = [name for name in now if now[name] > sizes.targets[name]]
            group = max(rose, key=lambda name: now[name] / max(sizes.targets[name], 1))
            whose = f"the {by}s with few jobs" if group is None else f"{by} '{group}'"
            why = f"the {measure.in_words} of {whose} is {above(now[group], sizes.targets[group])}"
        yield f"No node can be returned: with {best.policy} on {nodes(best.today - 1, best.model)} {why}."
    if sizes.caution:
        yield sizes.caution
    if sizes.more_jobs_pct is not None:
        takes, most = sizes.more_jobs_pct, max(sizes.more_jobs_pct.values(), default=0)
        how_many = f"at least {most}" if most == MOST_MORE_PCT else f"{most}"
        yield (
            f"With {max(takes, key=takes.__getitem__)}, today's cluster takes {how_many} % more jobs and keeps {kept}."
            if most
            else f"Today's cluster takes no more jobs if it is to keep {kept}."
        )
    if by:
        run = sizes.curves[0].points[0].run
        small = _is_small(run)
        if small.any():
            counts = (
                "count as one" if int(small[run.group].sum()) >= FEWEST_JOBS else "count only among all jobs"
            )
            yield f"{by.capitalize()}s with fewer than {FEWEST_JOBS} jobs each {counts}."
    if best.low is not None:
        high = "no size that was tried" if best.high is None else f"{best.high:,}"
        low = f"{best.low:,}{' or fewer' if best.low_is_open else ''}"
        yield f"When weeks are resampled, 80 % of the smallest sizes lie between {low} and {high} nodes."
    for curve in sizes.curves:
        worst = max(
            (p for p in curve.points if p.unserved > curve.at_today.unserved),
            key=lambda p: p.unserved,
            default=None,
        )
        if worst is not None:
            names = ", ".join(f"'{name}'" for name in worst.first_unserved)
            yield (
                f"On {nodes(worst.cluster.count, worst.cluster.model)} {curve.policy} does not finish"
                f" {counted(worst.unserved, 'job')}, such as {names}; today {curve.at_today.unserved:,}."
            )
    if sizes.step > 1:
        yield f"Sizes were tried in steps of {sizes.step} nodes, and then each size between the last two."
