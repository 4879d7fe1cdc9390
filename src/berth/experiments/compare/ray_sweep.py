"""The runs of a sweep on a Ray cluster; Ray is the optional extra `ray`.

Ray ends a process that has lost its node, so another process than this one talks to it. If that ends, the runs that are
left are sent again by a new one. The jobs go to the cluster with the tasks, so that the trace need not lie there; berth
must be installed there.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection, get_context, resource_tracker
from typing import Any

from berth.errors import BerthError, SettingError, SimulationError
from berth.experiments.compare.interruption import interruption_put_off
from berth.experiments.compare.ray_address import ANSWERS_WITHIN_S, check_address
from berth.experiments.compare.sweep import Loader, Result, Task, run_task
from berth.model import Job

__all__ = ["check_address", "run_on_ray"]

MOST_LOST = 3
"""How often one run may be lost with its process or node, and how often the connection, before the sweep ends."""
ENDS_WITHIN_S = 20
"""How long the process that talks to Ray may take to end."""

_Answer = tuple[int, Result | BerthError]
"""The number of a task, and what came of it."""


def run_on_ray(tasks: Sequence[Task], address: str) -> Iterator[Result]:
    """Every task's result, as they are done on the cluster at this address.

    `local` starts a Ray for these runs alone. A run that is lost with its node or process is sent again, and so are all
    that are left when the connection is lost. SettingError if there is no Ray cluster at the address,
    SimulationError if a run or the connection is lost `MOST_LOST` times.
    """
    left = dict(enumerate(tasks))
    lost = 0
    while left:
        check_address(address)
        driver = _Driver(address, left)
        try:
            for number, result in driver.results():
                del left[number]
                yield result
        finally:
            driver.end()
        if not left:
            return
        lost += 1
        told = f"the connection to the Ray cluster at '{address}' was lost with {len(left)} of {len(tasks)} runs left"
        if lost == MOST_LOST:
            raise SimulationError(f"{told}, the {MOST_LOST}rd time: {driver.last_line()}")
        warnings.warn(f"{told}: they are sent again", stacklevel=2)


class _Driver:
    """The process that talks to Ray, and the pipe that results come by."""

    def __init__(self, address: str, tasks: Mapping[int, Task]) -> None:
        context = get_context("spawn")
        resource_tracker.ensure_running()  # when it starts it unblocks what is put off here
        self._said = tempfile.NamedTemporaryFile(prefix="berth-ray-", suffix=".log")  # noqa: SIM115  until `end`
        self._pipe, its_end = context.Pipe()
        self._process = context.Process(target=_drive, args=(its_end, address, self._said.name))
        with interruption_put_off():
            self._process.start()
        its_end.close()  # so that the pipe ends when the process does
        self._last = ""
        with suppress(OSError):
            self._pipe.send(dict(tasks))

    def results(self) -> Iterator[tuple[int, Result]]:
        """What comes, until all is there or the process has ended; raises what a run, or the connecting, raises."""
        while True:
            try:
                answer: _Answer | None = self._pipe.recv()
            except (EOFError, OSError):
                return
            if answer is None:
                return
            number, result = answer
            if isinstance(result, BerthError):
                raise result
            yield number, result

    def last_line(self) -> str:
        """What Ray said last."""
        return self._last or "Ray's own logs, in /tmp/ray/session_latest/logs, may say why"

    def end(self) -> None:
        """End the process, which ends what it has sent and a Ray of its own; by force if it does not within a while."""
        self._process.terminate()
        self._process.join(ENDS_WITHIN_S)
        self._process.kill()
        self._process.join()
        self._pipe.close()
        lines = self._said.read().decode(errors="replace").split("\n")
        self._last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        self._said.close()


def _drive(pipe: connection.Connection, address: str, log: str) -> None:
    """What the process does: sends the tasks, and hands their results back. What Ray prints goes to a file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked is interrupted, and ends this one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # by way of what ends Ray
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        tasks: dict[int, Task] = pipe.recv()
        try:
            for answer in _on_ray(tasks, address):
                pipe.send(answer)
        except BerthError as error:
            pipe.send((-1, error))
        pipe.send(None)


def _on_ray(tasks: Mapping[int, Task], address: str) -> Iterator[_Answer]:
    # Attempts, a second each, for what speaks Ray's protocol and is no head of a cluster; read on import.
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", str(ANSWERS_WITHIN_S))
    import ray

    alone: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **alone)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SettingError(f"no Ray cluster at '{address}': {_first_line(error)}") from error
    try:
        yield from _results(ray, tasks)
    finally:
        ray.shutdown()


def _results(ray: Any, tasks: Mapping[int, Task]) -> Iterator[_Answer]:
    run = ray.remote(_run)
    loader = Loader()
    left = deque(tasks.items())
    at_once = 2 + int(ray.cluster_resources().get("CPU", 1))  # a few wait there, so that no CPU does
    sent: tuple[Any, Any] = (None, None)
    pending: dict[Any, tuple[int, tuple[Any, ...]]] = {}
    lost = dict.fromkeys(tasks, 0)
    try:
        while left or pending:
            while left and len(pending) < at_once:
                number, task = left.popleft()
                jobs, errors = loader.load(task)
                if sent[0] is not jobs:
                    sent = (jobs, ray.put(jobs))
                pending[run.remote(replace(task, source=()), sent[1])] = number, errors
            done, _ = ray.wait(list(pending), num_returns=1)
            for reference in done:
                number, errors = pending.pop(reference)
                try:
                    yield number, replace(ray.get(reference), skipped=errors)
                except ray.exceptions.RayTaskError as error:
                    raise _of_the_run(tasks[number], error) from error
                except ray.exceptions.RayError as error:
                    lost[number] += 1
                    if lost[number] == MOST_LOST:
                        raise SimulationError(
                            f"the run of '{tasks[number].policy}' with seed {tasks[number].seed} was lost {MOST_LOST}"
                            f" times on the Ray cluster: {_first_line(error)}"
                        ) from error
                    left.appendleft((number, tasks[number]))
    finally:
        for reference in pending:
            with suppress(ray.exceptions.RayError):
                ray.cancel(reference, force=True)


def _of_the_run(task: Task, error: Any) -> BerthError:
    """What a run raised there, as it would have been raised here."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BerthError):
        return cause
    kind = type(cause).__name__
    return SimulationError(f"a run of '{task.policy}' fails on the Ray cluster: {kind}: {cause}")


def _run(task: Task, jobs: tuple[Job, ...]) -> Any:
    return run_task(task, jobs)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
