"""What if other policies, other GPUs or other rules had served the jobs that ran: replays beside what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from berth.experiments.compare import Comparison, Task, compare
from berth.experiments.compare.conditions import AS_THE_TRACE_SAYS, Conditions, conditions_of
from berth.experiments.compare.parallel import run_all
from berth.experiments.recorded_run import RecordedRun, distances, recorded_run
from berth.experiments.weeks import NO_WAITS, Trust, Waits, waits_of
from berth.history.store.folder import History
from berth.model import WHOLE_GPU, Job, Node, Outage
from berth.policies import Progress
from berth.statistics import EventColumns, Run, run_of

REALLY = "what really happened"
"""Stands where a run has its policy."""
AS_IT_WAS = "as it was"

Apart = tuple[str, float, float]
"""A policy, and how far the makespan and the mean wait of its replay are from the real ones, per cent."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What really happened, and the replays."""

    real: RecordedRun
    result: Comparison
    """What was asked for; where nothing but the policy changed, the policy that ran is among its runs."""
    as_it_was: Run | None
    """The policy that ran, replayed on the machine as it was; None if it is not known."""
    replayed: Waits = NO_WAITS
    """How long jobs waited in that replay; empty if that policy is not known."""

    @property
    def apart(self) -> list[Apart]:
        """How far each replay of `result` is from what happened."""
        return distances(self.real, self.result.runs)

    @property
    def error(self) -> Apart | None:
        """How far the replay of what ran is from what happened: what a replay may be wrong by."""
        return None if self.as_it_was is None else distances(self.real, [self.as_it_was])[0]

    @property
    def trust(self) -> Trust:
        """What is to be known before the numbers are read."""
        return Trust(self.real.policy, self.real.waits, self.replayed)

    @property
    def runs(self) -> tuple[Run, ...]:
        """All replays, that of what ran first; if others share its policy, it is named `… as it was`."""
        if self.as_it_was is None:
            return self.result.runs
        others = tuple(run for run in self.result.runs if run is not self.as_it_was)
        first = self.as_it_was
        if any(run.policy == first.policy for run in others):
            first = replace(first, policy=f"{first.policy} {AS_IT_WAS}")
        return (first, *others)

    @property
    def distributions(self) -> tuple[Run, ...]:
        """The runs, and before them one of which only `waiting` and `completion` are so: what really happened."""
        real = self.real
        as_real = replace(
            self.runs[0], policy=REALLY, oracle=False, waiting=real.waiting, completion=real.completion
        )
        return (as_real, *self.runs)


def what_if(
    history: History,
    policies: Sequence[str],
    *,
    since_ms: int = 0,
    until_ms: int | None = None,
    nodes: Sequence[Node] = (),
    whole_gpus: bool = False,
    processes: int = 1,
    progress: Progress | None = None,
    **conditions: Any,
) -> WhatIf:
    """Replay the jobs that were submitted from `since_ms` and before `until_ms` through each policy.

    `nodes` are those of the replay, by default the machine as it was; they are also taken for the machine where the
    history does not know it. With `whole_gpus` each job has whole GPUs, whatever part it asked for. `conditions` are
    fields of `berth.experiments.compare.conditions.Conditions`. The policy that ran is always replayed as it ran,
    because without it a replay's distance from what happens is unknown.

    Raises SettingError if no job ran then or the machine is unknown, and what `compare` raises.
    """
    real = recorded_run(history, since_ms=since_ms, until_ms=until_ms, nodes=nodes)
    there, under = nodes_and_conditions(real, nodes, conditions)
    as_then = replace(AS_THE_TRACE_SAYS, outages=real.outages, limits=real.limits)
    changed = bool(nodes and real.known) or whole_gpus or replace(under, interference_name="") != as_then
    names = list(dict.fromkeys(policies))
    baseline = bool(real.policy)
    if baseline and not changed and real.policy not in names:
        names.append(real.policy)
    jobs = tuple(replace(job, share=WHOLE_GPU) for job in real.jobs) if whole_gpus else real.jobs
    steps = _Steps(progress, len(names) + baseline)
    result = compare(
        jobs, names, cluster=there, processes=processes, progress=steps.part(0, len(names)), conditions=under
    )
    as_it_was = next((run for run in result.runs if run.policy == real.policy), None)
    replayed = NO_WAITS
    if baseline:
        run, replayed = replay(real, real.policy, steps.part(len(names), 1))
        as_it_was = as_it_was if as_it_was is not None and not changed else run
    return WhatIf(real, result, as_it_was, replayed)


def nodes_and_conditions(
    real: RecordedRun, nodes: Sequence[Node], changed: Mapping[str, Any]
) -> tuple[tuple[Node, ...], Conditions]:
    """What a replay of a history runs on, and under what, for every command alike.

    `nodes` take the place of the machine as it was, if any are given. Outages and reservations may be told since 1970.
    Without other outages or failures the nodes that were lost are lost again, and without other limits those of the
    history hold. Raises what `conditions_of` raises.
    """
    there = tuple(nodes) if nodes and real.known else real.nodes
    under = _since_first(conditions_of(changed, there), real.origin_ms)
    if not under.outages and under.failures is None:
        under = replace(under, outages=_on(there, real))
    if not under.limits:
        under = replace(under, limits=real.limits)
    return there, under


def replay(real: RecordedRun, policy: str, progress: Progress | None = None) -> tuple[Run, Waits]:
    """A policy on the machine as it was, and how long jobs waited then."""
    under = replace(AS_THE_TRACE_SAYS, outages=real.outages, limits=real.limits)
    task = Task(real.jobs, real.nodes, policy, 0, under, measure=partial(_run_and_waits, policy))
    (result,) = run_all([task], 1, progress)
    run, waits = cast("tuple[Run, Waits]", result.measured)
    return replace(run, oracle=task.oracle), waits


def replayed_waits(jobs: tuple[Job, ...], nodes: tuple[Node, ...], policy: str, under: Conditions) -> Waits:
    """How long jobs wait under a policy."""
    (result,) = run_all([Task(jobs, nodes, policy, 0, under, measure=waits_of)], 1, None)
    return cast(Waits, result.measured)


def _run_and_waits(
    policy: str, columns: EventColumns, nodes: Sequence[Node], jobs: Sequence[Job]
) -> tuple[Run, Waits]:
    return run_of(columns, nodes, policy, 0, pictures=False), waits_of(columns, nodes, jobs)


def _since_first(under: Conditions, origin_ms: int) -> Conditions:
    """These conditions, their outages and reservations counted from the first job if they are told since 1970."""
    outages, reservations = under.outages, under.reservations
    if outages and max(outage.down_ms for outage in outages) >= origin_ms:
        outages = tuple(
            outage._replace(
                down_ms=(down_ms := max(0, outage.down_ms - origin_ms)),
                up_ms=None if outage.up_ms is None else outage.up_ms - origin_ms,
                drain_ms=min(outage.drain_ms, down_ms),
            )
            for outage in outages
            if outage.up_ms is None or outage.up_ms > origin_ms
        )
    if reservations and max(each.start_ms for each in reservations) >= origin_ms:
        reservations = tuple(
            each._replace(
                start_ms=(start_ms := max(0, each.start_ms - origin_ms)),
                end_ms=each.end_ms - origin_ms,
                drain_ms=min(each.drain_ms, start_ms),
            )
            for each in reservations
            if each.end_ms > origin_ms
        )
    return replace(under, outages=outages, reservations=reservations)


def _on(nodes: Sequence[Node], real: RecordedRun) -> tuple[Outage, ...]:
    """The outages of what happened, on those of these nodes that the machine had."""
    row_of = {node.name: row for row, node in enumerate(nodes)}
    names = [real.nodes[outage.node].name for outage in real.outages]
    return tuple(
        outage._replace(node=row_of[name])
        for outage, name in zip(real.outages, names, strict=True)
        if name in row_of
    )


@dataclass(frozen=True, slots=True)
class _Steps:
    """The progress of several comparisons as that of one."""

    progress: Progress | None
    total: int

    def part(self, before: int, count: int) -> Progress | None:
        if self.progress is None:
            return None
        progress = self.progress
        return lambda done, of: progress(before + done * count / max(of, 1), self.total)
