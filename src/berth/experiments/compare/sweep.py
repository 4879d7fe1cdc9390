"""One run of a sweep: one policy on one seed, and what it warned of."""

from __future__ import annotations

import gc
import logging
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import TraceError
from berth.experiments.compare.conditions import AS_THE_TRACE_SAYS, Conditions, OwnMetrics
from berth.interference import KnowsProfiles
from berth.knowledge import make_knowledge
from berth.model import Event, Job, Node, Outage
from berth.policies import Policy, Setting, is_oracle, make_policy
from berth.policies.schemes.limits import Limits
from berth.policies.schemes.rounds import Rounds
from berth.statistics import EventColumns, Run, event_columns, run_of
from berth.statistics.real_use import attempts_of, real_use
from berth.traces import Trace
from berth.traces.job_table import JobTable, compressed, values_of

Warnings = Mapping[str, tuple[str, ...]]
"""The different messages of each text, by the text as the code has it."""

_log = logging.getLogger(__name__)
Measure = Callable[[EventColumns, Sequence[Node], Sequence[Job]], object]
"""Makes something of the events of a run, its nodes and its jobs."""


@dataclass(frozen=True, slots=True)
class Task:
    """One policy on one seed, as a worker process needs it to be told."""

    source: Trace | tuple[Job, ...]
    nodes: tuple[Node, ...]
    policy: str
    seed: int
    conditions: Conditions = AS_THE_TRACE_SAYS
    events: str | None = None
    """Where to write the events as Parquet."""
    records: str | None = None
    """Where to write a record of every attempt as Parquet."""
    measure: Measure | None = None
    """A function of a module whose result takes the place of the `Run`; or `OwnMetrics`, which are added to the `Run`'s
    summary."""
    jobs_file: Path | None = None
    """Where the jobs are pickled, in the place of `source`."""

    @property
    def oracle(self) -> bool:
        """Whether the policy chooses by true run times."""
        return is_oracle(self.policy, self.conditions.knowledge)


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What came of a task."""

    measured: object
    """What the task's `measure` has made of the run; its `Run` without one or with own metrics."""
    skipped: tuple[TraceError, ...] = ()
    """Bad rows that were left out."""
    warned: Warnings = field(default_factory=dict)
    """What was logged as a warning."""

    @property
    def run(self) -> Run:
        """What was measured, where that is a `Run`."""
        assert isinstance(self.measured, Run)
        return self.measured


@contextmanager
def held_collector() -> Iterator[None]:
    """Hold the collector while jobs are read and replayed.

    They are a million values without a cycle among them, and it would look through all of them again and
    again, for up to a third of the time. What is left of them in the end counts as old, so that it does not look
    through it at once.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # else a caller has frozen what is to stay so
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@held_collector()
def run_task(
    task: Task,
    jobs: Sequence[Job],
    skipped: tuple[TraceError, ...] = (),
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Replay the jobs of a task; `progress` is called now and then with how many jobs have arrived."""
    with gathered() as messages:
        result = _run(task, jobs, skipped, progress)
    return replace(result, warned={text: tuple(found) for text, found in messages.items()})


def _run(
    task: Task,
    jobs: Sequence[Job],
    skipped: tuple[TraceError, ...],
    progress: Callable[[int], None] | None,
) -> Result:
    under = task.conditions
    quotas = None if under.quotas is None else dict(under.quotas)
    knowledge = make_knowledge(under.knowledge, jobs, under.interference, task.seed)
    speeds = under.speeds.among(task.nodes)
    setting = Setting(task.seed, quotas, under.borrow, knowledge, speeds, under.recovery.restart_ms)
    policy: Policy = make_policy(task.policy, setting)
    if under.limits:
        policy = Limits(policy, under.limits)
    if unknown := under.speeds.unknown(jobs):
        some = ", ".join(f"'{name}'" for name in unknown[:5])
        warnings.warn(
            f"{under.speeds.name} has no speeds of {len(unknown):,} applications of the jobs, such as {some}: these are"
            " taken to be as fast on every card",
            stacklevel=2,
        )
    if under.round_ms is not None:
        policy = Rounds(policy, under.round_ms)
    outages: Sequence[Outage] | Iterator[Outage] = under.outages
    drawn: list[Outage] = list(under.outages)
    if under.failures is not None:
        outages = _noted(under.failures.outages(len(task.nodes), task.seed), drawn)
    events: Iterator[Event] = simulate(
        jobs,
        Cluster(task.nodes),
        policy,
        knowledge=knowledge,
        interference=under.interference,
        outages=outages,
        reservations=under.reservations,
        recovery=under.recovery,
        speeds=speeds,
        seed=task.seed,
        when_full=under.when_full,
    )
    if task.events is not None:
        from berth.history.store.events import written

        events = written(events, task.nodes, task.events, drawn)
    if task.records is not None:
        from berth.history.store.record_files import recorded

        events = recorded(events, task.nodes, task.records)
    columns = event_columns(events, progress)
    own = task.measure if isinstance(task.measure, OwnMetrics) else None
    if task.measure is not None and own is None:
        return Result(task.measure(columns, task.nodes, jobs), skipped)
    model, use = under.interference, None
    if isinstance(model, KnowsProfiles):
        use = real_use(attempts_of(columns, jobs), task.nodes, model, model.profiles, under.recovery)
    memory, pictures = under.when_full is not None, own is None  # a sweep draws its own metrics
    run = run_of(
        columns, task.nodes, task.policy, task.seed, use, under.prices, memory=memory, pictures=pictures
    )
    if own is not None:
        run = replace(run, summary=replace(run.summary, own=own(columns, task.nodes, jobs)))
    return Result(replace(run, oracle=task.oracle), skipped)


def same_jobs(one: Task, other: Task) -> bool:
    """Whether two tasks replay the same jobs, so that those read for one serve the other."""
    files = isinstance(one.source, Trace)  # else jobs: to compare a million of them takes long
    here, there = one.conditions, other.conditions
    return (
        (one.source == other.source and one.nodes == other.nodes if files else one.source is other.source)
        and one.jobs_file == other.jobs_file
        and (here.compress, here.skip_bad) == (there.compress, there.skip_bad)
    )


class Loader:
    """The trace that was read last, so that it is read once for all tasks on it."""

    def __init__(self) -> None:
        self._last: Task | None = None
        self._read: Sequence[Job] = ()
        self._errors: tuple[TraceError, ...] = ()
        self._adapted: tuple[object, Sequence[Job]] = (None, ())
        """For which nodes and checkpoints the jobs were adapted last, and what came of it."""

    @held_collector()
    def load(self, task: Task) -> tuple[Sequence[Job], tuple[TraceError, ...]]:
        """The jobs of a task, and the bad rows that were left out."""
        if self._last is None or not same_jobs(task, self._last):
            under = task.conditions
            errors: list[TraceError] = []
            if isinstance(task.source, Trace):
                bad = errors if under.skip_bad else None
                self._read = task.source.table(nodes=task.nodes, skip_bad=bad, compress=under.compress)
            else:
                jobs = task.source if task.jobs_file is None else pickle.loads(task.jobs_file.read_bytes())
                self._read = compressed(jobs, under.compress)
            self._errors, self._last = tuple(errors), task
            self._adapted = (None, ())
        what = (task.nodes, task.conditions.recovery.checkpoint_ms)
        if self._adapted[0] != what:
            self._adapted = (what, _adapted(self._read, task))
        return self._adapted[1], self._errors


def _adapted(jobs: Sequence[Job], task: Task) -> Sequence[Job]:
    """The jobs as this cluster and these conditions have them.

    Where a trace gives each virtual cluster nodes of its own and another cluster is named, whose nodes do not carry
    its label, its jobs may run anywhere. With checkpoints every job keeps its work.
    """
    labels = {label for node in task.nodes for label in node.labels}
    keeps = task.conditions.recovery.checkpoint_ms is not None
    if not keeps and not any(values_of(jobs, "labels")):
        return jobs

    def adapted(job: Job) -> Job:
        if job.labels and job.labels == (job.virtual_cluster,) and labels.isdisjoint(job.labels):
            job = replace(job, labels=())
        return replace(job, keeps_work=True) if keeps and not job.keeps_work else job

    return jobs.each(adapted) if isinstance(jobs, JobTable) else tuple(map(adapted, jobs))


def _noted(outages: Iterator[Outage], drawn: list[Outage]) -> Iterator[Outage]:
    for outage in outages:
        drawn.append(outage)
        yield outage


@contextmanager
def gathered() -> Iterator[dict[str, dict[str, None]]]:
    """Keep what berth's loggers warn of in this block, instead of handing it to the root's handlers."""
    logger, handler = logging.getLogger("berth"), _Gathers(logging.WARNING)
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.messages
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


class Warned:
    """Counts what the runs of a sweep warned of."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._messages: dict[str, dict[str, None]] = {}
        self._runs: Counter[str] = Counter()

    def add(self, warnings: Warnings) -> None:
        """Count one more run."""
        for text, messages in warnings.items():
            self._messages.setdefault(text, {}).update(dict.fromkeys(messages))
            self._runs[text] += 1

    def log(self) -> None:
        """Log the first message of each text, with how many others there were and in how many of the runs."""
        for text, messages in self._messages.items():
            others = len(messages) - 1
            counts = [f"{others:,} more like it"] if others else []
            if self._total > 1:
                counts.append(f"in {self._runs[text]:,} of {self._total:,} runs")
            more = f" ({', '.join(counts)})" if counts else ""
            _log.warning("%s%s", next(iter(messages)), more)


class _Gathers(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.messages: dict[str, dict[str, None]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.setdefault(str(record.msg), {})[record.getMessage()] = None
