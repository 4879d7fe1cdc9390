"""Work spread over processes of this machine, its results as they are done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from berth.errors import SimulationError

__all__ = ["in_processes"]

Work = TypeVar("Work")
Done = TypeVar("Done")


def in_processes(
    do: Callable[[Work], Done], tasks: Sequence[Work], processes: int
) -> Iterator[tuple[Work, Done]]:
    """Each task with what `do`, a function of a module, made of it. Whoever stops asking stops what still runs.

    Raises SimulationError where a process dies.
    """
    # Spawned, not forked: a fork of a process with threads (a progress bar, DuckDB) may hang.
    context = get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(tasks)), mp_context=context, initializer=_deaf) as pool:
        pending = {pool.submit(do, task): task for task in tasks}
        try:
            for future in as_completed(pending):
                yield pending[future], future.result()
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
