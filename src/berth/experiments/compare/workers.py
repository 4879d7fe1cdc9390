"""The runs of a sweep in processes of this machine.

Each worker has a pipe of its own and does one task at a time; no thread, lock or queue is shared with the others. So
a worker may be ended at any moment, even while it sends a result, and the rest of it is not waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection, get_context, resource_tracker

from berth.errors import BerthError, SimulationError
from berth.experiments.compare.interruption import interruption_put_off
from berth.experiments.compare.sweep import Loader, Result, Task, run_task, same_jobs

__all__ = ["Turns", "run_in_processes"]

DIED = (
    "a process of the sweep died: memory may have run out (try fewer processes), or this is a script that"
    " starts by itself in each process; put what it does under: if __name__ == '__main__':"
)


def run_in_processes(tasks: Sequence[Task], processes: int) -> Iterator[Result]:
    """Every task's result, as they are done; closing the iterator ends the processes.

    Raises what a task raises, and SimulationError where a process dies.
    """
    turns = Turns(tasks)
    workers: dict[connection.Connection, _Worker] = {}
    resource_tracker.ensure_running()  # when it starts it unblocks what is put off here
    try:
        with interruption_put_off():
            for _ in range(min(processes, len(tasks))):
                worker = _Worker()
                workers[worker.pipe] = worker
        busy = [worker.pipe for worker in workers.values() if worker.begin(turns)]
        while busy:
            for pipe in connection.wait(busy):
                worker = workers[pipe]  # type: ignore[index]
                result = worker.result()
                if not worker.begin(turns):
                    busy.remove(worker.pipe)
                yield result
    finally:
        for worker in workers.values():
            worker.process.kill()
        for worker in workers.values():
            worker.process.join()
            worker.pipe.close()


class Turns:
    """Which worker does which task next: one on the trace that it read last, so that traces are seldom read."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._untouched: deque[deque[Task]] = deque()
        self._begun: list[deque[Task]] = []
        for task in tasks:
            for like in self._untouched:
                if same_jobs(like[0], task):
                    like.append(task)
                    break
            else:
                self._untouched.append(deque([task]))

    def next(self, last: Task | None) -> Task | None:
        """The next task for the worker that has done `last`; None if none is left.

        A trace that no worker has begun comes before one that another is at, and of those the one with the
        most left.
        """
        self._begun = [tasks for tasks in self._begun if tasks]
        mine = next((tasks for tasks in self._begun if last is not None and same_jobs(tasks[0], last)), None)
        if mine is None and self._untouched:
            mine = self._untouched.popleft()
            self._begun.append(mine)
        if mine is None:
            mine = max(self._begun, key=len, default=None)
        return mine.popleft() if mine else None


class _Worker:
    """One process, and what it has been given."""

    def __init__(self) -> None:
        # Spawned, not forked: a fork of a process with threads (a progress bar, DuckDB) may hang.
        context = get_context("spawn")
        self.pipe, its_end = context.Pipe()
        self.process = context.Process(target=_work, args=(its_end,), daemon=True)
        self.process.start()
        its_end.close()  # so that the pipe ends when the process does
        self._last: Task | None = None

    def begin(self, turns: Turns) -> bool:
        """Give it a task, and jobs and nodes only where they are others than before; False where none is left."""
        task = turns.next(self._last)
        if task is None:
            return False
        known = self._last is not None and same_jobs(task, self._last)
        self._last = task
        try:
            self.pipe.send((replace(task, source=(), nodes=()), None if known else (task.source, task.nodes)))
        except OSError as error:
            raise SimulationError(DIED) from error
        return True

    def result(self) -> Result:
        """What came of its task, once the pipe has something to read."""
        try:
            answer: Result | BerthError = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise SimulationError(DIED) from error
        if isinstance(answer, BerthError):
            raise answer
        return answer


def _work(pipe: connection.Connection) -> None:
    """What a process does until the other end of its pipe is closed."""
    loader = Loader()
    source, nodes = (), ()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task, others = pipe.recv()
            if others is not None:
                source, nodes = others
            task = replace(task, source=source, nodes=nodes)
            try:
                jobs, errors = loader.load(task)
                answer: Result | BerthError = run_task(task, jobs, errors)
            except BerthError as error:
                answer = error
            except Exception as error:
                kind = type(error).__name__
                pipe.send(SimulationError(f"a run of '{task.policy}' fails in its process: {kind}: {error}"))
                raise  # its traceback goes to standard error
            pipe.send(answer)
