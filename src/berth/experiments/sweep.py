"""Runs of a sweep, one policy on one seed each: here, in processes, or on a Ray cluster."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import SimulationError, TraceError
from berth.experiments.collector import held_collector
from berth.interference import Interference, no_interference
from berth.model import Event, Job, Node, Outage
from berth.outages import FailureRate, Recovery
from berth.policies import Policy, Setting, make_policy
from berth.policies.rounds import Rounds
from berth.statistics import Run, event_columns, run_of
from berth.traces import Trace
from berth.traces.compress import compressed

__all__ = ["Loader", "Progress", "Result", "Task", "run_all", "run_task"]

AS_THE_JOB_SAYS = Recovery()

Progress = Callable[[float, float], None]
"""Called now and then with how much is done and how much there is, both in runs."""


@dataclass(frozen=True, slots=True)
class Task:
    """One policy on one seed, as a worker process needs it to be told."""

    source: Trace | tuple[Job, ...]
    nodes: tuple[Node, ...]
    policy: str
    seed: int
    compress: float = 1.0
    skip_bad: bool = False
    interference: Interference = no_interference
    outages: tuple[Outage, ...] = ()
    at_ms: tuple[int, ...] | None = None
    events: str | None = None
    """Where to write the events as Parquet."""
    failures: FailureRate | None = None
    """Outages at a rate, from this task's seed, after those named."""
    recovery: Recovery = AS_THE_JOB_SAYS
    quotas: tuple[tuple[str, int], ...] | None = None
    """GPUs of each virtual cluster."""
    borrow: bool = False
    round_ms: int | None = None
    """The policy decides at whole multiples of this; None: whenever something happens."""


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What came of a task."""

    run: Run
    skipped: tuple[TraceError, ...] = ()
    """Bad rows that were left out."""


@held_collector()
def run_task(task: Task, jobs: Sequence[Job], progress: Callable[[int], None] | None = None) -> Run:
    """Replay the jobs of a task; `progress` is called now and then with how many jobs have arrived."""
    quotas = None if task.quotas is None else dict(task.quotas)
    policy: Policy = make_policy(
        task.policy, Setting(task.seed, jobs, quotas, task.borrow, task.interference)
    )
    if task.round_ms is not None:
        policy = Rounds(policy, task.round_ms)
    outages: Sequence[Outage] | Iterator[Outage] = task.outages
    if task.failures is not None:
        outages = task.failures.outages(len(task.nodes), task.seed)
    happened: Iterator[Event] = simulate(
        _counted(jobs, progress) if progress else jobs,
        Cluster(task.nodes),
        policy,
        interference=task.interference,
        outages=outages,
        recovery=task.recovery,
        seed=task.seed,
    )
    if task.events is not None:
        from berth.history.events import written

        happened = written(happened, task.nodes, task.events)
    return run_of(event_columns(happened), task.nodes, task.policy, task.seed, task.at_ms)


def run_all(
    tasks: Sequence[Task], processes: int, progress: Progress | None, ray_address: str | None = None
) -> Iterator[Result]:
    """Every task's result, as they are done. Whoever stops asking stops what still runs."""
    if ray_address is not None:
        from berth.experiments.ray_sweep import run_on_ray

        results = run_on_ray(tasks, ray_address)
    elif processes == 1 or len(tasks) == 1:
        loader = Loader()
        for number, task in enumerate(tasks):
            jobs, errors = loader.load(task)
            yield Result(run_task(task, jobs, _part_of(progress, number, len(tasks), len(jobs))), errors)
            if progress:
                progress(number + 1, len(tasks))
        return
    else:
        results = _run_in_processes(tasks, processes)
    for number, result in enumerate(results):
        yield result
        if progress:
            progress(number + 1, len(tasks))


def _run_in_processes(tasks: Sequence[Task], processes: int) -> Iterator[Result]:
    # Spawned, not forked: a fork of a process with threads (a progress bar, DuckDB) may hang.
    context = get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(tasks)), mp_context=context, initializer=_deaf) as pool:
        pending = [pool.submit(_work, task) for task in tasks]
        try:
            for future in as_completed(pending):
                yield future.result()
        except BrokenProcessPool as error:
            raise SimulationError(
                "a process of the sweep died: memory may have run out (try fewer processes), or this is a script that"
                " starts by itself in each process; put what it does under: if __name__ == '__main__':"
            ) from error
        except BaseException:
            workers = list((getattr(pool, "_processes", None) or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:  # or leaving would wait for what they are at
                worker.terminate()
            raise


def _deaf() -> None:
    """Leave an interruption from the keyboard to the process that waits for this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(task: Task) -> Result:
    jobs, errors = _in_worker.load(task)
    return Result(run_task(task, jobs), errors)


class Loader:
    """The trace that was read last, so that it is read once for all tasks on it."""

    def __init__(self) -> None:
        self._key: object = None
        self._loaded: tuple[tuple[Job, ...], tuple[TraceError, ...]] = ((), ())

    @held_collector()
    def load(self, task: Task) -> tuple[tuple[Job, ...], tuple[TraceError, ...]]:
        """The jobs of a task, and the bad rows that were left out."""
        # By identity: two tasks on the same jobs hold the same tuple, and to compare a million jobs takes long.
        source = task.source if isinstance(task.source, Trace) else id(task.source)
        key = (source, task.compress, task.skip_bad, task.recovery, task.nodes)
        if self._key != key:
            errors: list[TraceError] = []
            jobs: Iterable[Job]
            if isinstance(task.source, Trace):
                bad = errors if task.skip_bad else None
                jobs = task.source.jobs(nodes=task.nodes, skip_bad=bad, compress=task.compress)
            elif task.compress != 1:
                jobs = compressed((replace(job) for job in task.source), task.compress)
            else:
                jobs = task.source
            self._loaded = (_adapted(tuple(jobs), task), tuple(errors))
            self._key = key
        return self._loaded


_in_worker = Loader()
"""What a worker process has read; the process that asks has a Loader for each sweep."""


def _adapted(jobs: tuple[Job, ...], task: Task) -> tuple[Job, ...]:
    """The jobs as this cluster and these conditions have them.

    Where a trace gives each virtual cluster nodes of its own and another cluster is named, whose nodes do not carry
    its label, its jobs may run anywhere. With checkpoints every job keeps its work.
    """
    labels = {label for node in task.nodes for label in node.labels}
    keeps = task.recovery.checkpoint_ms is not None
    if not keeps and not any(job.labels for job in jobs):
        return jobs
    adapted = []
    for job in jobs:
        if job.labels and job.labels == (job.virtual_cluster,) and labels.isdisjoint(job.labels):
            job = replace(job, labels=())
        adapted.append(replace(job, keeps_work=True) if keeps and not job.keeps_work else job)
    return tuple(adapted)


def _counted(jobs: Sequence[Job], progress: Callable[[int], None]) -> Iterator[Job]:
    for number, job in enumerate(jobs):
        if number % 2048 == 0:
            progress(number)
        yield job


def _part_of(progress: Progress | None, number: int, tasks: int, jobs: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    return lambda arrived: progress(number + arrived / max(1, jobs), tasks)
