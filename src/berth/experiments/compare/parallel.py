"""All runs of a sweep: one after the other, or at once by joblib, in processes (loky) or on a Ray cluster."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from berth.errors import BerthError, SettingError, SimulationError
from berth.experiments.compare.interruption import interruption_put_off
from berth.experiments.compare.sweep import Loader, Result, Task, Warned, run_task
from berth.policies import Progress

_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function with its arguments, as `joblib.delayed` makes it."""


ANSWERS_WITHIN_S = 5
_HERE = ("local", "auto")
"""Addresses that name no other machine: a Ray of one's own, and the one that runs here."""

_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of gRPC, which Ray speaks, begins: HTTP/2's preface and an empty SETTINGS frame (RFC 9113, 3.4)."""
_SETTINGS = b"\x04"
"""The kind, the fourth byte, of the frame that a server begins with."""


@contextmanager
def lasting_processes(processes: int) -> Iterator[None]:
    """The processes of all sweeps within last until the end: to start one takes a second."""
    global _lasting
    _lasting = processes > 1
    try:
        yield
    finally:
        if _lasting:
            _end_processes()
        _lasting = False


_lasting = False


def _end_processes() -> None:
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def run_all(
    tasks: Sequence[Task], processes: int, progress: Progress | None, ray_address: str | None = None
) -> Iterator[Result]:
    """Every task's result, as they are done. Closing the iterator cancels the rest."""
    with closing(run_each(tasks, processes, progress, ray_address)) as pairs:
        for _, result in pairs:
            yield result


def run_each(
    tasks: Sequence[Task], processes: int, progress: Progress | None, ray_address: str | None = None
) -> Generator[tuple[Task, Result], None, None]:
    """Every task with its result, as they are done. Closing the iterator cancels the rest.

    What the runs warn of is logged once, at the end.
    """
    warned = Warned(len(tasks))
    try:
        with closing(_as_they_end(tasks, processes, progress, ray_address)) as results:
            for number, result in results:
                warned.add(result.warned)
                yield tasks[number], result
    finally:
        warned.log()


def _as_they_end(
    tasks: Sequence[Task], processes: int, progress: Progress | None, ray_address: str | None
) -> Generator[tuple[int, Result], None, None]:
    """The number of every task with its result."""
    if ray_address is not None:
        results = _on_ray(tasks, ray_address)
    elif processes == 1 or len(tasks) == 1:
        loader = Loader()
        for number, task in enumerate(tasks):
            jobs, errors = loader.load(task)
            result = run_task(task, jobs, errors, _part_of(progress, number, len(tasks), len(jobs)))
            yield number, result
            if progress:
                progress(number + 1, len(tasks))
        return
    else:
        results = _in_processes(tasks, processes)
    for done, (number, result) in enumerate(results, 1):
        yield number, result
        if progress:
            progress(done, len(tasks))


def _in_processes(tasks: Sequence[Task], processes: int) -> Iterator[tuple[int, Result]]:
    """Every task's number and result, as they are done; closing the iterator ends the processes.

    Raises what a task raises, and SimulationError where a process dies.
    """
    from joblib import Parallel, delayed
    from joblib.externals.loky.backend import resource_tracker
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    # An interruption may come after loky removed a semaphore and before the tracker knows it, which then warns.
    sys.warnoptions.append("ignore:resource_tracker")
    resource_tracker.ensure_running()  # when it starts, it unblocks what `_numbered` puts off
    sys.warnoptions.pop()
    parallel = Parallel(
        n_jobs=min(processes, len(tasks)), backend="loky", initializer=_ignore_interruptions, **_ONE_BY_ONE
    )
    running: dict[int, Task] = {}
    try:
        with _jobs_in_files(tasks) as sent:
            calls = (delayed(_run)(number, _noted(task, number, running)) for number, task in enumerate(sent))
            yield from _numbered(parallel, calls, running)
    except TerminatedWorkerError as error:
        raise SimulationError(
            f"a process of the sweep died, which ran {_named(running)}: memory may have run out (try fewer processes)"
        ) from error
    finally:
        if not _lasting:
            _end_processes()


def _on_ray(tasks: Sequence[Task], address: str) -> Iterator[tuple[int, Result]]:
    """Every task's number and result, as they are done on the Ray cluster at this address; `local` starts one.

    The jobs go to the cluster with the tasks, so that the trace need not lie there; berth must be installed there.
    SettingError if there is no Ray cluster at the address, SimulationError if it loses a run.
    """
    check_address(address)
    # Attempts, a second each, for what speaks Ray's protocol and is no head of a cluster; read on import.
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", str(ANSWERS_WITHIN_S))
    import ray
    from joblib import Parallel, delayed
    from ray.util.joblib.ray_backend import RayBackend

    class Streaming(RayBackend):
        """Hands each result out when it is there; joblib takes for granted that no pool of processes can."""

        supports_return_generator = True

    alone: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **alone)
    except Exception as error:  # Ray raises nothing narrower if its own processes start too slowly
        raise SettingError(f"no Ray cluster at '{address}': {_first_line(error)}") from error
    running: dict[int, Task] = {}
    errors: dict[int, Any] = {}
    loader = Loader()
    last: tuple[Any, Any] = (None, None)  # jobs, and where the cluster has them

    def calls() -> Iterator[_Call]:
        nonlocal last
        for number, task in enumerate(tasks):
            jobs, errors[number] = loader.load(task)
            if last[0] is not jobs:
                last = (jobs, ray.put(tuple(jobs)))
            sent = _noted(replace(task, source=()), number, running)
            yield delayed(_run)(number, sent, last[1])

    try:
        resources: Any = ray.cluster_resources
        cpus = int(resources().get("CPU", 1))
        parallel = Parallel(n_jobs=cpus, backend=Streaming(), **_ONE_BY_ONE)
        # Ray prints there that a worker died, also where its task is run again: standard output is the command's.
        with redirect_stdout(sys.stderr):
            for number, result in _numbered(parallel, calls(), running):
                yield number, replace(result, skipped=errors.pop(number))
    except ray.exceptions.RayError as error:
        raise SimulationError(
            f"the Ray cluster at '{address}' lost {_named(running)}: {_first_line(error)}"
        ) from error
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Raise SettingError where the address is none, or what answers there does not speak as Ray does.

    It takes seconds; Ray itself tries for minutes.
    """
    if address in _HERE:
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise SettingError(
            f"'{address}' is no address of a Ray cluster; expected HOST:PORT, ray://HOST:PORT or local"
        )
    try:
        with socket.create_connection((host, int(port)), timeout=ANSWERS_WITHIN_S) as connection:
            connection.settimeout(ANSWERS_WITHIN_S - 1)
            connection.sendall(_GREETING)
            answer = connection.recv(64)
    except (OSError, OverflowError) as error:
        raise SettingError(
            f"no Ray cluster answers at '{address}' ({error}); start one with: ray start --head --port {port}"
        ) from error
    if answer[3:4] != _SETTINGS:
        raise SettingError(
            f"no Ray cluster answers at '{address}': what listens there says {answer[:20]!r}, which is not gRPC"
        )


def _part_of(progress: Progress | None, number: int, tasks: int, jobs: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    return lambda arrived: progress(number + arrived / max(1, jobs), tasks)


_ONE_BY_ONE: dict[str, Any] = {
    "batch_size": 1,
    "pre_dispatch": "n_jobs",
    "return_as": "generator_unordered",
}


def _ignore_interruptions() -> None:
    """Leave Ctrl-C, of which a terminal tells every process, to the one that asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _numbered(
    parallel: Any, calls: Iterator[_Call], running: dict[int, Task]
) -> Iterator[tuple[int, Result]]:
    """Numbers of tasks and what came of them; `running` has those that have begun and not ended."""
    with (
        interruption_put_off()
    ):  # so that the processes, which are started here, never hear of an interruption
        results: Generator[tuple[int, Result], None, None] = parallel(calls)
    try:
        for number, result in results:
            del running[number]
            yield number, result
    finally:
        with warnings.catch_warnings():  # of runs that are cancelled, which is what closing asks for
            warnings.simplefilter("ignore")
            results.close()


def _noted(task: Task, number: int, running: dict[int, Task]) -> Task:
    running[number] = task
    return task


def _named(running: dict[int, Task]) -> str:
    return " or ".join(f"'{task.policy}' with seed {task.seed}" for task in running.values())


_loader = Loader()
"""The trace that this process read last."""


def _run(number: int, task: Task, place: Any = None) -> tuple[int, Result]:
    """What a process of the sweep does, or a worker of a Ray cluster, which has the jobs at a place."""
    try:
        if place is None:
            return number, run_task(task, *_loader.load(task))
        import ray

        return number, run_task(task, ray.get(place))
    except BerthError:
        raise
    except Exception as error:
        raise SimulationError(
            f"a run of '{task.policy}' fails in its process: {type(error).__name__}: {error}"
        ) from error


@contextmanager
def _jobs_in_files(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """The tasks, with jobs that are no trace in a file, which each process reads once."""
    with TemporaryDirectory(prefix="berth-sweep-") as folder:
        places: dict[int, Path] = {}
        sent = []
        for task in tasks:
            if isinstance(task.source, tuple):
                place = places.get(id(task.source))
                if place is None:
                    place = places[id(task.source)] = Path(folder, str(len(places)))
                    place.write_bytes(pickle.dumps(task.source))
                task = replace(task, source=(), jobs_file=place)
            sent.append(task)
        yield sent


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
