"""The main job: the same trace through several policies, on several seeds, side by side."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from berth.cluster import Cluster
from berth.counts import counted
from berth.errors import SettingError, TraceError, check_kind
from berth.experiments.compare.conditions import AS_THE_TRACE_SAYS, Conditions, conditions_of
from berth.experiments.compare.parallel import check_address, run_each
from berth.experiments.compare.sweep import Result, Task
from berth.experiments.compare.table import TextTable, html_table, text_table
from berth.frames import Framed
from berth.interference import mode_of
from berth.knowledge import differs_by_seed
from berth.model import Job, Node, Reason
from berth.policies import Progress, Setting, make_policy
from berth.policies.genetic.batch import Shortage, shortage_of
from berth.policies.protocol import draws
from berth.statistics import Metric, Run, metrics_of, standings, summary_dict
from berth.statistics.comparison import answers
from berth.traces import Trace, read_nodes, read_trace

MOST_NAMED = 5
"""How many of the jobs that no node could hold are named."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Framed):
    """What came out: one Run a policy and seed, in the order in which they were asked for."""

    trace: str
    nodes: tuple[Node, ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    conditions: Conditions
    runs: tuple[Run, ...]
    skipped: tuple[TraceError, ...] = ()
    """Bad rows that were left out because the caller asked for it."""
    never_fitting: tuple[Shortage, ...] = ()
    """Of the jobs that no node could hold, even empty, the first five, with what they are short of."""

    @property
    def answers(self) -> tuple[str, ...]:
        """What was found, in sentences with their uncertainty."""
        return answers(self.runs)

    def table(self) -> TextTable:
        """What was found, then metrics down and policies across, with half of the means' 95 % interval over seeds."""
        return text_table(self.runs)

    def rows(self) -> list[dict[str, object]]:
        """A row for each policy, seed and metric: `policy`, `oracle`, `seed`, `metric`, `unit`, `value`, `better`.

        `unit` is as the metric counts (docs/metrics.md), never changed to be readable; `value` is None where the
        metric is not defined; `better` is "more", "less" or "".
        """
        metrics = metrics_of(run.summary for run in self.runs)
        return [row for run in self.runs for row in rows_of(run, metrics)]

    def __repr__(self) -> str:
        jobs = self.runs[0].summary.jobs if self.runs else 0
        return (
            f"Comparison({self.trace!r}, {counted(jobs, 'job')} on {counted(len(self.nodes), 'node')},"
            f" policies={list(self.policies)}, seeds={list(self.seeds)})"
        )

    def _repr_html_(self) -> str:
        return html_table(self.runs)

    def plot(self, picture: str = "waits") -> Any:
        """A picture as a plotly Figure, which notebooks show: `waits`, `completion`, `allocation` or `queue`.

        The first two are distributions over jobs, the others go over time; oracles are dashed. SettingError if there is
        no such picture.
        """
        from berth.experiments.compare import plots
        from berth.plots import policy_styles

        drawn = {
            "waits": plots.waiting_cdf,
            "completion": plots.completion_cdf,
            "allocation": plots.allocation_over_time,
            "queue": plots.queue_over_time,
        }
        if picture not in drawn:
            raise SettingError(f"no picture '{picture}' of a comparison; there are {', '.join(drawn)}")
        oracles = {run.policy for run in self.runs if run.oracle}
        return drawn[picture](self.runs, policy_styles(self.policies, oracles))

    def to_dict(self) -> dict[str, object]:
        """What `--json` prints; docs/metrics.md documents the keys."""
        return {
            "answers": list(self.answers),
            "trace": self.trace,
            "cluster": {"nodes": len(self.nodes), "gpus": sum(node.gpus for node in self.nodes)},
            "policies": list(self.policies),
            "seeds": list(self.seeds),
            "compress": self.conditions.compress,
            "knowledge": self.conditions.knowledge,
            "mode": mode_of(self.conditions.interference),
            "runs": [
                {
                    "policy": run.policy,
                    "seed": run.seed,
                    "oracle": run.oracle,
                    **summary_dict(run.summary),
                }
                for run in self.runs
            ],
            "metrics": [
                {
                    "name": metric.name,
                    "unit": str(metric.unit),
                    "policies": {
                        standing.policy: {
                            "mean": _number(standing.interval.mean),
                            "low_95": _number(standing.interval.low),
                            "high_95": _number(standing.interval.high),
                            "seeds": standing.interval.count,
                        }
                        for standing in standings(self.runs, metric)
                    },
                }
                for metric in metrics_of(run.summary for run in self.runs)
            ],
            "skipped": [str(error) for error in self.skipped],
            "never_fitting": [str(shortage) for shortage in self.never_fitting],
        }


def rows_of(run: Run, metrics: Iterable[Metric]) -> Iterator[dict[str, object]]:
    """The rows of one run in a data frame, as `Comparison.rows` describes them."""
    for metric in metrics:
        yield {
            "policy": run.policy,
            "oracle": run.oracle,
            "seed": run.seed,
            "metric": metric.name,
            "unit": str(metric.unit),
            "value": _number(metric.of(run.summary)),
            "better": "more" if metric.best is max else "less" if metric.best is min else "",
        }


def compare(
    trace: Trace | str | os.PathLike[str] | Sequence[Job],
    policies: Sequence[str | Callable[..., Any]] | str,
    *,
    cluster: Sequence[Node] | str | os.PathLike[str] | None = None,
    seeds: int | Sequence[int] = 1,
    conditions: Conditions = AS_THE_TRACE_SAYS,
    events: str | os.PathLike[str] | None = None,
    records: str | os.PathLike[str] | None = None,
    processes: int = 1,
    ray: str | None = None,
    keep: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **changed: Any,
) -> Comparison:
    """Replay a trace through each policy on each seed.

    `cluster` is a file, a spec such as `10x8:V100` or nodes; by default the cluster that the trace brings.
    `seeds` is how many (0, 1, …) or which. The seed goes to the policies that draw; a synthetic trace that
    names no seed of its own is drawn anew with each, and so are the errors of `noisy` knowledge and outages at a
    rate. Otherwise a policy that does not draw has one run, on the first seed: others would give the same. With
    `events` all runs' events go into one Parquet file, and with `records` those of a single run: a record of every
    attempt, which is a trace and can be imported.

    A policy is a name, or a function or class at the top of a module.

    All runs are under the same `conditions`, by default none that changes anything; any other keyword changes the field
    of `Conditions` of that name: `compress=6`, `outages="lost.csv"`, `quotas={"vcA": 64}`, `interference="mps"`.
    The runs are spread over `processes`, or over the Ray cluster at the address `ray`.
    With `keep` each finished run is written into that folder, and not run again where it is there already (with
    `events` or `records` all are run again).

    Raises SettingError where no cluster is known and for a keyword that is no condition, TraceError for a bad row (with
    `skip_bad` those are listed in the result instead), PolicyError for an unknown policy.
    """
    for value, kind, wanted in (
        (trace, Iterable | str | os.PathLike, "a trace, its path, or jobs"),
        (policies, Sequence | Callable, "policies by their names, or functions or classes"),
        (
            cluster,
            Iterable | str | os.PathLike | None,
            "a cluster as a file, a text such as 10x8:V100, or nodes",
        ),
        (seeds, int | Iterable, "seeds as their number or a list"),
        (processes, int, "a number of processes"),
        (conditions, Conditions, "berth.Conditions"),
    ):
        check_kind(value, kind, f"compare takes {wanted}")
    if isinstance(seeds, str):
        raise SettingError(f"compare takes seeds as their number or a list; not {seeds!r}")
    named = (policies,) if isinstance(policies, str) or callable(policies) else policies
    names = tuple(dict.fromkeys(_name_of(policy) for policy in named))
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(dict.fromkeys(seeds))
    if not names or not numbers:
        raise SettingError(
            f"a comparison needs at least one policy and one seed, not {len(names)} and {len(numbers)}"
        )
    if processes < 1:
        raise SettingError(f"a comparison runs on 1 or more processes, not {processes}")
    source: Trace | tuple[Job, ...]
    if isinstance(trace, str | os.PathLike):
        source = read_trace(trace)
    else:
        source = trace if isinstance(trace, Trace) else tuple(trace)
    nodes = nodes_of(source, cluster)
    under = conditions_of(changed, nodes, conditions)
    quotas = None if under.quotas is None else dict(under.quotas)
    for name in names:
        make_policy(name, Setting(quotas=quotas))  # refused before anything is read
    if ray is not None:
        if (events is not None or records is not None) and ray != "local":
            raise SettingError(
                "events and records are written where a run is, which on a Ray cluster may be another machine; leave"
                " them out, or the address"
            )
        check_address(ray)
    tasks = tasks_of(source, nodes, names, numbers, under)
    if records is not None:
        if len(tasks) > 1:
            raise SettingError(f"records are of one run, not of {len(tasks)}: name one policy and one seed")
        tasks = [replace(tasks[0], records=_writable(records, "records"))]
    runs: dict[tuple[str, int], Run] = {}
    skipped: tuple[TraceError, ...] = ()
    with _event_files(tasks, events) as tasks:
        for _, result in continued_results(tasks, processes, ray, keep, progress):
            runs[result.run.policy, result.run.seed] = result.run
            skipped = skipped or result.skipped
    ordered = tuple(runs[name, seed] for name in names for seed in numbers if (name, seed) in runs)
    label = source.path if isinstance(source, Trace) else counted(len(source), "job")
    if not any(run.summary.jobs for run in ordered):
        raise SettingError(f"{label} has no jobs to replay" + (f"; {skipped[0]}" if skipped else ""))
    never: tuple[Shortage, ...] = ()
    if any(run.summary.rejections.get(Reason.NEVER_FITS) for run in ordered):
        never = tuple(islice(_never_fitting(tasks[0]), MOST_NAMED))
    return Comparison(label, nodes, names, numbers, under, ordered, skipped, never)


def _name_of(policy: object) -> str:
    """The name that `make_policy` finds a policy by, also in another process."""
    if isinstance(policy, str):
        return policy
    module, name = getattr(policy, "__module__", ""), getattr(policy, "__qualname__", "")
    own = inspect.isfunction(policy) or inspect.isclass(policy)
    if not own or not name.isidentifier():
        raise SettingError(
            "a comparison takes names of policies, such as 'my_module:my_policy', and functions or classes at the top"
            f" of a module, which can be named; not {policy!r}"
        )
    return f"{module}:{name}"


def _never_fitting(task: Task) -> Iterator[Shortage]:
    """The jobs of a run that fit on no node, even empty, with what each is short of."""
    empty = Cluster(task.nodes)
    source = task.source
    jobs = source.jobs(nodes=task.nodes, skip_bad=[]) if isinstance(source, Trace) else source
    return (shortage_of(job, empty) for job in jobs if not empty.fits_when_empty(job))


def tasks_of(
    source: Trace | tuple[Job, ...],
    nodes: tuple[Node, ...],
    policies: Sequence[str],
    seeds: Sequence[int],
    under: Conditions,
) -> list[Task]:
    """One task per policy and seed; only the first seed where the others would give the same run."""
    tasks: list[Task] = []
    drawn = under.failures is not None or differs_by_seed(under.knowledge)
    for seed in seeds:
        seeded = source.with_seed(seed) if isinstance(source, Trace) else source
        for name in policies:
            if seeded is source and seed != seeds[0] and not (drawn or _draws(name)):
                continue
            tasks.append(Task(seeded, nodes, name, seed, under))
    return tasks


def continued_results(
    tasks: Sequence[Task],
    processes: int,
    ray: str | None,
    keep: str | os.PathLike[str] | None,
    progress: Progress | None,
    *,
    apart: bool = False,
) -> Iterator[tuple[Task, Result]]:
    """Every task with its result: the kept ones first, then the others as they are done, which are kept in turn.

    With `apart` runs of one policy and seed under other conditions are kept next to each other.
    """
    if keep is None:
        yield from run_each(tasks, processes, progress, ray)
        return
    from berth.experiments.compare.kept import KeptRuns
    from berth.experiments.compare.kept_file import continued

    def run(missing: Sequence[Task], part: Progress | None) -> Iterator[tuple[Task, Result]]:
        return run_each(missing, processes, part, ray)

    yield from continued(tasks, KeptRuns(Path(keep), apart=apart), run, progress)


def nodes_of(
    source: Trace | tuple[Job, ...], cluster: Sequence[Node] | str | os.PathLike[str] | None
) -> tuple[Node, ...]:
    """The cluster that was named, by default the one that the trace brings. SettingError where there is none."""
    if isinstance(cluster, str | os.PathLike):
        return read_nodes(cluster)
    if cluster is not None:
        return tuple(cluster)
    if isinstance(source, Trace) and source.nodes:
        return source.nodes
    raise SettingError("the trace brings no cluster; say which with --cluster FILE or --cluster 10x8:V100")


def _draws(name: str) -> bool:
    """Whether the policy may give something else with another seed."""
    parts = name.split("+")
    own_order = len(parts) > 1 and ":" in parts[-2]
    return own_order or draws(make_policy(name))


def _writable(target: str | os.PathLike[str], what: str) -> str:
    path = Path(target)
    if not path.parent.is_dir():
        raise SettingError(f"{what} are to be written to '{path}', but there is no folder '{path.parent}'")
    return os.fspath(path)


@contextmanager
def _event_files(tasks: list[Task], target: str | os.PathLike[str] | None) -> Iterator[list[Task]]:
    """The tasks, each told to write its events into a folder of their own; afterwards one file is made of them."""
    if target is None:
        yield tasks
        return
    from berth.history.store.events import join_events

    path = Path(_writable(target, "events"))
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        sent = [replace(task, events=f"{folder}/{number}") for number, task in enumerate(tasks)]
        yield sent
        join_events([(Path(str(task.events)), task.policy, task.seed) for task in sent], path)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
