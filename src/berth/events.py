"""Events of a simulation as arrays, without a Job or an Event for each, and the protocol of what yields them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from berth.model import Event, EventKind, Job, Reason
from berth.traces.job_table import JobNumbers

KINDS = tuple(EventKind)
"""The kind that each code of a kind stands for."""
REASONS = tuple(Reason)
"""The reason that each code of a reason stands for."""
SUBMIT, START, FINISH, FAIL, EVICT, REJECT, CANCEL, RESIZE, SUSPEND, RESUME = range(len(KINDS))
"""The codes of kinds."""
new = tuple.__new__
"""Makes an Event in half of the time that it takes itself, which is a function of Python: `new(Event, (…))`."""


@dataclass(frozen=True, slots=True, eq=False)
class EventBatch:
    """E events in their order, of first attempts that share no GPU, S slots taken by them in all."""

    jobs: Sequence[Job]
    """All jobs of the run; each job is made when it is asked for."""
    numbers: JobNumbers
    """The same jobs."""
    time_ms: NDArray[np.int64]  # (E,)
    kind: NDArray[np.int8]  # (E,)
    """Index into KINDS."""
    row: NDArray[np.int32]  # (E,)
    """The number of its job, by which jobs are submitted."""
    reason: NDArray[np.int8]  # (E,)
    """Index into REASONS."""
    slot_offsets: NDArray[np.int64]  # (starts + 1,)
    """The slots of start `s` are `slot_offsets[s]:slot_offsets[s + 1]` of the two arrays below."""
    slot_node: NDArray[np.int32]  # (S,)
    slot_index: NDArray[np.int32]  # (S,)
    """NO_GPU where it took only CPU and memory of the node."""


@runtime_checkable
class Batched(Protocol):
    """Events that can be had many at a time."""

    def batches(self) -> Iterator[list[Event] | EventBatch]:
        """All that are still to come, in their order; take all of them, or none."""
