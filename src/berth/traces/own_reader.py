"""A reader of the user's own: `my.module:reader`, called with a path, which yields Jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from berth.errors import BerthError, SettingError, TraceError, in_one_line
from berth.model import Job
from berth.own_code import named_thing


def check_reader(name: str) -> Callable[[str], Iterable[Job]]:
    """The reader of this name. Raises SettingError if there is none that can be called with a path."""
    reader: Callable[[str], Iterable[Job]] = named_thing(name, "reader", SettingError)
    try:
        inspect.signature(reader).bind("trace.csv")
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"no reader '{name}': {error}; expected my.module:reader, a function of a path that yields Jobs"
        ) from error
    return reader


def jobs_of(name: str, path: str, *, file_order: bool) -> list[Job]:
    """The reader's jobs, in order of submission or as it yields them.

    Raises TraceError where the reader raises, yields something else than a Job, or an id twice.
    """
    jobs = list(_checked(name, path))
    if not file_order:
        jobs.sort(key=attrgetter("submit_ms"))
    return jobs


def _checked(name: str, path: str) -> Iterator[Job]:
    seen: set[str] = set()
    try:
        for job in check_reader(name)(path):
            if not isinstance(job, Job):
                raise TraceError(path, f"Jobs from the reader '{name}', which yielded {job!r:.100}")
            if job.id in seen:
                raise TraceError(
                    path, f"each id once from the reader '{name}', which yielded '{job.id}' twice"
                )
            seen.add(job.id)
            yield job
    except (BerthError, KeyboardInterrupt, GeneratorExit):
        raise
    except Exception as error:
        raise TraceError(path, f"Jobs from the reader '{name}', which raised {in_one_line(error)}") from error
