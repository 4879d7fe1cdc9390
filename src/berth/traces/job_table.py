"""Jobs that are made from columns when they are asked for: a million take 80 MiB this way, and 400 MiB as objects.

Who feels it is `berth simulate` on a long trace: a job's values live in columns, and the Job itself only while it waits
or runs.

They are made three times as fast as by calling `Job` for each: a frozen dataclass sets each of its twenty fields
through `object.__setattr__`, which takes most of the time of reading a large trace. A `draft` has the same fields, is
filled in like any object, and becomes a job as it is. The result is equal to that of `Job(…)`.

`numbers_of` gives the times and kinds of jobs as arrays, and `compressed` divides their times of submission.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from berth.errors import SettingError
from berth.model import FOREVER_MS, Job

_Column: TypeAlias = "array[int] | list[Any]"
_Int64: TypeAlias = NDArray[np.int64]
Values: TypeAlias = "Sequence[Any] | NDArray[np.int64]"
"""The values of one column, those of whole numbers perhaps as an array."""
_NAMES = [known.name for known in fields(Job)]
_DEFAULTS = {known.name: known.default for known in fields(Job)}


class FromFields:
    """Makes the jobs of rows that have the values of some of their fields; the other fields are alike in all jobs."""

    def __init__(self, names: Sequence[str], **alike: Any) -> None:
        """`names` are the fields of a row in its order; a field that is not named otherwise has its default."""
        self.names = tuple(names)
        self._alike = {name: alike.get(name, _DEFAULTS[name]) for name in _NAMES if name not in names}
        self._values = tuple(self._alike.values())
        row = [*names, *self._alike]
        self._arguments = itemgetter(*map(row.index, _NAMES))

    def __call__(self, row: tuple[Any, ...]) -> Job:
        return finished(draft(*self._arguments(row + self._values)))

    def column(self, name: str, columns: Sequence[Sequence[Any]]) -> Sequence[Any]:
        """That field of each job whose rows these columns have."""
        if name in self.names:
            return columns[self.names.index(name)]
        return [self._alike[name]] * len(columns[0]) if columns else ()


class JobTable(Sequence[Job]):
    """Jobs in the order of their rows; each is made whenever it is asked for."""

    def __init__(self, columns: Sequence[Sequence[Any]], make: Callable[[tuple[Any, ...]], Job]) -> None:
        """`make` turns a row, one value of each column, into its job; the same one each time, or an equal one.

        The first column is the time of submission, ms.
        """
        self._columns = columns
        self._make = make

    def __len__(self) -> int:
        return len(self._columns[0]) if self._columns else 0

    def __iter__(self) -> Iterator[Job]:
        return map(self._make, zip(*self._columns, strict=True))

    @overload
    def __getitem__(self, at: int) -> Job: ...
    @overload
    def __getitem__(self, at: slice) -> JobTable: ...
    def __getitem__(self, at: int | slice) -> Job | JobTable:
        picked = [column[at] for column in self._columns]
        return JobTable(picked, self._make) if isinstance(at, slice) else self._make(tuple(picked))

    def submitted(self, change: Callable[[_Int64], _Int64]) -> JobTable:
        """The same jobs, submitted at what `change` makes of their times of submission, ms."""
        if not self._columns:
            return self
        submit_ms = array("q", change(np.asarray(self._columns[0], np.int64)).tobytes())
        return JobTable([submit_ms, *self._columns[1:]], self._make)

    def each(self, change: Callable[[Job], Job]) -> JobTable:
        """The same jobs, each as `change` makes it when it is asked for."""
        make = self._make
        return JobTable(self._columns, lambda row: change(make(row)))

    @property
    def names(self) -> Sequence[str] | None:
        """The fields in which its jobs may differ, which are its columns; None where a row is something else."""
        return self._make.names if isinstance(self._make, FromFields) else None

    def values(self, name: str) -> Sequence[Any]:
        """That field of each job."""
        if isinstance(self._make, FromFields):
            return self._make.column(name, self._columns)
        return [*map(attrgetter(name), self)]


def values_of(jobs: Sequence[Job], name: str) -> Sequence[Any]:
    """That field of each job; from a table without making the jobs."""
    return jobs.values(name) if isinstance(jobs, JobTable) else [*map(attrgetter(name), jobs)]


_NOT_OF_KIND = {
    *("id", "submit_ms", "work_ms", "user", "application", "estimate_ms", "time_limit_ms", "patience_ms"),
    *("virtual_cluster", "deadline_ms"),
}
"""The fields in which jobs of one kind may differ."""


@dataclass(frozen=True, slots=True, eq=False)
class JobNumbers:
    """What a simulation needs of J jobs in numbers, so that it makes none of them. They are of K kinds: those of one
    kind are alike except for id, times (with limits, estimates, patience and deadline), user, application and virtual
    cluster."""

    submit_ms: _Int64  # (J,)
    work_ms: _Int64  # (J,)
    time_limit_ms: _Int64  # (J,)
    """−1 for none, like the next two; each of them is empty where no job has one."""
    patience_ms: _Int64  # (J,)
    estimate_ms: _Int64  # (J,)
    kind: NDArray[np.int32]  # (J,)
    kind_rows: _Int64  # (K,)
    """The first job of each kind."""


def numbers_of(jobs: Sequence[Job]) -> JobNumbers:
    """Jobs as numbers. Raises TypeError if a time is not a whole number, as the work of a live job, and ValueError if a
    limit, patience or estimate is negative."""
    count = len(jobs)
    kind, kind_rows = np.zeros(count, np.int32), np.zeros(min(count, 1), np.int64)
    columns = jobs.names if isinstance(jobs, JobTable) else None
    if columns is None:
        jobs = [*jobs]
    names = [name for name in columns or _NAMES if name not in _NOT_OF_KIND]
    if names:
        first: dict[Any, int] = {}
        alike: Iterable[Any] = map(attrgetter(*names), jobs)
        if columns is not None:
            alike = zip(*(values_of(jobs, name) for name in names), strict=True)
        firsts = np.fromiter(map(first.setdefault, alike, range(count)), np.int64, count)
        begins = firsts == np.arange(count)
        kind_rows = np.flatnonzero(begins)
        kind = (np.cumsum(begins, dtype=np.int32) - 1)[firsts]
    return JobNumbers(
        submit_ms=_whole(values_of(jobs, "submit_ms")),
        work_ms=_whole(values_of(jobs, "work_ms")),
        time_limit_ms=_optional(values_of(jobs, "time_limit_ms")),
        patience_ms=_optional(values_of(jobs, "patience_ms")),
        estimate_ms=_optional(values_of(jobs, "estimate_ms")),
        kind=kind,
        kind_rows=kind_rows,
    )


def _whole(values: Sequence[Any]) -> _Int64:
    found = np.asarray(values) if len(values) else np.empty(0, np.int64)
    if found.dtype != np.int64 or not (isinstance(values, array) or {*map(type, values)} <= {int}):
        raise TypeError("expected whole numbers of 64 bits")
    return found


def _optional(values: Sequence[Any]) -> _Int64:
    nones = 0 if isinstance(values, array) else values.count(None)
    if nones == len(values):
        return np.empty(0, np.int64)
    found = _whole([-1 if value is None else value for value in values] if nones else values)
    if np.count_nonzero(found < 0) > nones:
        raise ValueError("expected numbers from 0 on")
    return found


def columns_of(parts: Iterable[Sequence[Values]], *, in_order: bool = True) -> list[_Column]:
    """Tables with the same columns as one, by default in order of the first column, rows with equal values as they
    came. Whole numbers become arrays."""
    columns: list[_Column] = []
    for part in parts:
        if not columns:
            columns = [array("q") for _ in part]
        for number, values in enumerate(part):
            column = columns[number]
            if isinstance(column, array):
                if isinstance(values, np.ndarray):
                    column.frombytes(values.tobytes())
                    continue
                try:
                    if {*map(type, values)} == {int}:
                        column.extend(array("q", values))
                        continue
                except OverflowError:
                    pass
                column = columns[number] = column.tolist()
            column.extend(values.tolist() if isinstance(values, np.ndarray) else values)
    if in_order and columns:
        times = np.asarray(columns[0])
        if (times[1:] < times[:-1]).any():
            order = np.argsort(times, kind="stable")
            columns = [_taken(column, order) for column in columns]
    return columns


def _taken(column: _Column, order: _Int64) -> _Column:
    if isinstance(column, array):
        return array("q", np.asarray(column)[order].tobytes())
    return [*map(column.__getitem__, order.tolist())]


def compressed(jobs: Sequence[Job], factor: float) -> Sequence[Job]:
    """Jobs whose times of submission are divided by `factor`, rounded down to a millisecond: a queue forms where the
    cluster of a trace was half empty.

    Raises SettingError for a factor that is not a positive number, or so small that jobs would never come.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise SettingError(f"arrivals can be compressed by a positive number, not by {factor}")
    if factor == 1.0:
        return jobs

    def sooner(submit_ms: NDArray[Any]) -> _Int64:
        last_ms = float(submit_ms.max(initial=0))
        if last_ms / factor >= FOREVER_MS:
            raise SettingError(
                f"arrivals compressed by {factor} would put the last job at {last_ms / factor:.3g} ms; expected a"
                f" factor above {last_ms / FOREVER_MS:.3g}"
            )
        return (submit_ms / factor).astype(np.int64)

    if isinstance(jobs, JobTable):
        return jobs.submitted(sooner)
    times = sooner(np.array([job.submit_ms for job in jobs], np.float64))
    return tuple(map(submitted_at, jobs, times.tolist()))


draft: Callable[..., Any] = make_dataclass(
    "draft",
    [
        (known.name, known.type)
        if known.default is MISSING
        else (known.name, known.type, field(default=known.default))
        for known in fields(Job)
    ],
    slots=True,
)
"""What is to become a job; it takes what `Job` takes."""


def finished(unfinished: Any) -> Job:
    """The same object as a job."""
    unfinished.__class__ = Job  # its slots are the same: Python checks that
    return unfinished  # type: ignore[no-any-return]  # a call of `cast` would take a tenth of the time


def setter(name: str) -> Callable[[Job, Any], None]:
    """What sets this field of a job that no other code has seen yet."""
    put: Callable[[Job, Any], None] = getattr(Job, name).__set__
    return put


_AT = _NAMES.index("submit_ms")
_values: Callable[[Job], tuple[Any, ...]] = attrgetter(*_NAMES)


def submitted_at(job: Job, submit_ms: int) -> Job:
    """A new job that is this one but for its time of submission, in 40 % of the time that `replace` takes."""
    values = _values(job)
    return finished(draft(*values[:_AT], submit_ms, *values[_AT + 1 :]))
