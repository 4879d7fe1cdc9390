"""What Numba compiles for plain runs: many instants in one call, in which jobs only come, start and end.

Letters: R rows of jobs, C jobs that are to come, O events told at most, T request types. Each function does what `Run`,
the queue and the strict policy do in Python, to the event; `tests/engine/test_plain.py` holds the two equal.
"""

from __future__ import annotations

from typing import NamedTuple

from berth.arrays import FloatArray, IntArray, compiled
from berth.cluster.kernels import (
    ALL_GPUS,
    ALL_NODES,
    GPU_MEM,
    MILLI,
    choose_devices,
    compiled_arrays_of,
    give_back,
    take,
)  # fmt: skip
from berth.model import FOREVER_MS
from berth.policies.placements.score_kernels import ANY_FIT, best_node, compiled_kept_in, first_node

__all__ = ["Told", "advance", "release"]

CHOOSE, ENDS, ARRIVALS, DECIDE, LEAVE = range(5)
"""Where in an instant a run has got to."""

NEEDS_JOBS, FULL, PLACE, RELEASE = range(4)
"""Why `advance` has returned: it knows no more jobs to come; the events must be read first; Python is to place the job
of the row ASKED and to say in ANSWER whether it did; or is to release it."""

# What `state` holds.
(
    NOW,
    PHASE,
    COMING,
    LAST_COMING,
    HORIZON,
    WAITING,
    ENDING,
    SERIAL,
    TOLD,
    FREE,
    ASKED,
    ANSWER,
    STUCK,
    DECIDES,
) = range(14)
TIGHTEST, KERNEL, LEAVING = range(14, 17)
STATE = 17

NOT_YET, NO, YES = range(3)
"""What ANSWER can be."""

# Columns of a job's row.
SUBMIT_MS, RUN_MS, KEY, NUMBER, HOW, AS, START_MS, ORDER, NODE, DEVICES = range(10)
FILLED, COLUMNS = 6, 10  # the columns that are known when a job is drawn, and all

WAITS, AT_ONCE, NEVER = range(3)
"""What HOW can be: it waits, it leaves if it does not start when it comes, or it is rejected when it comes."""

WAITS_YET, OUTSIDE, RELEASED = -1, -2, -3
"""What NODE can be beside the number of a node: the job waits; Python has placed it; Python has released it."""

SUBMITTED, STARTED, ENDED, AT_LIMIT, NEVER_FITS, OUT_OF_PATIENCE = range(6)
"""What is told of a job. Column AS has ENDED, or AT_LIMIT for a job that its time limit ends."""


class Told(NamedTuple):
    """The arrays of a plain run."""

    state: IntArray  # (STATE,)
    jobs: IntArray  # (R, COLUMNS)
    coming: IntArray  # (C,): rows of the jobs to come
    waiting: IntArray  # (R, 3): a heap of key, serial number, row
    ending: IntArray  # (R, 3): a heap of end, serial number of the start, row
    leaving: IntArray  # (R, 3): a heap of those that leave when this instant ends: serial number, key, row
    told: IntArray  # (O, 3): when, what, row
    rows: IntArray  # (T,): by request type, its row in what the placement keeps
    chosen: IntArray  # (G,), scratch


@compiled
def push(heap: IntArray, length: int, first: int, second: int, row: int) -> None:
    """Put an entry on a heap of this length."""
    at = length
    while at > 0:
        above = (at - 1) // 2
        if heap[above, 0] < first or (heap[above, 0] == first and heap[above, 1] < second):
            break
        heap[at, 0] = heap[above, 0]
        heap[at, 1] = heap[above, 1]
        heap[at, 2] = heap[above, 2]
        at = above
    heap[at, 0] = first
    heap[at, 1] = second
    heap[at, 2] = row


@compiled
def pop(heap: IntArray, length: int) -> None:
    """Take the least entry off a heap of this length."""
    last = length - 1
    first = heap[last, 0]
    second = heap[last, 1]
    row = heap[last, 2]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= last:
            break
        other = below + 1
        if other < last and (
            heap[other, 0] < heap[below, 0]
            or (heap[other, 0] == heap[below, 0] and heap[other, 1] < heap[below, 1])
        ):
            below = other
        if first < heap[below, 0] or (first == heap[below, 0] and second < heap[below, 1]):
            break
        heap[at, 0] = heap[below, 0]
        heap[at, 1] = heap[below, 1]
        heap[at, 2] = heap[below, 2]
        at = below
    heap[at, 0] = first
    heap[at, 1] = second
    heap[at, 2] = row


@compiled
def tell(t: Told, what: int, row: int) -> None:
    """Note what happened."""
    at = t.state[TOLD]
    t.told[at, 0] = t.state[NOW]
    t.told[at, 1] = what
    t.told[at, 2] = row
    t.state[TOLD] = at + 1


@compiled
def alone(t: Told, requests: IntArray, number: int) -> bool:
    """Whether jobs of a request type go to one node if they can, to GPUs that bits can tell, in ascending order."""
    several = t.state[TIGHTEST] != 0 and requests[number, ALL_GPUS] > 1 and requests[number, MILLI] < 1000
    return bool(requests[number, ALL_NODES] <= 1 and not several)


@compiled
def place(
    t: Told, row: int, block: IntArray, requests: IntArray, unfit: IntArray, kept: IntArray, real: FloatArray
) -> bool:
    """Take for a job what the placement says, on one node; False if it fits on none."""
    number = t.jobs[row, NUMBER]
    gpus = requests[number, ALL_GPUS]
    milli = requests[number, MILLI]
    if not alone(t, requests, number) or gpus * milli > t.state[FREE]:
        return False
    kernel = t.state[KERNEL]
    of_type = t.rows[number]
    arrays = compiled_arrays_of(block)
    if kernel == ANY_FIT:
        node = first_node(block, requests, number, of_type, unfit)
        for at in range(gpus if node >= 0 else 0):
            t.chosen[at] = unfit[of_type, at]
    else:
        node = best_node(kernel, block, requests, number, of_type, kept, real)
        if node >= 0 and gpus == 1:
            t.chosen[0] = compiled_kept_in(kept).devices[of_type, node]
        elif node >= 0 and gpus > 1:
            tightest = t.state[TIGHTEST] != 0
            choose_devices(node, requests[number], arrays.free_milli, arrays.free_gpu_mem, tightest, t.chosen)
    if node < 0:
        return False
    devices = 0
    for at in range(1, gpus):
        arrays.slots[at, 0] = node
        arrays.slots[at, 1] = t.chosen[at]
    for at in range(gpus):
        devices |= 1 << t.chosen[at]
    first = t.chosen[0] if gpus > 0 else -1
    if not take(block, requests, number, milli, requests[number, GPU_MEM], node, first, max(1, gpus)):
        return False
    t.state[FREE] -= gpus * milli
    t.jobs[row, NODE] = node
    t.jobs[row, DEVICES] = devices
    return True


@compiled
def release(t: Told, row: int, block: IntArray, requests: IntArray) -> None:
    """Give back what `place` took."""
    number = t.jobs[row, NUMBER]
    gpus = requests[number, ALL_GPUS]
    milli = requests[number, MILLI]
    node = t.jobs[row, NODE]
    slots = compiled_arrays_of(block).slots
    count = 0
    first = -1
    index = 0
    devices = t.jobs[row, DEVICES]
    while devices:
        if devices & 1:
            if count == 0:
                first = index
            else:
                slots[count, 0] = node
                slots[count, 1] = index
            count += 1
        devices >>= 1
        index += 1
    give_back(block, requests, number, milli, requests[number, GPU_MEM], node, first, max(1, count))
    t.state[FREE] += gpus * milli


@compiled
def start(t: Told, row: int) -> None:
    """The first of the queue has started."""
    now_ms = t.state[NOW]
    t.state[SERIAL] += 1
    t.jobs[row, START_MS] = now_ms
    t.jobs[row, ORDER] = t.state[SERIAL]
    pop(t.waiting, t.state[WAITING])
    t.state[WAITING] -= 1
    end_ms = now_ms + t.jobs[row, RUN_MS]
    if end_ms < FOREVER_MS:
        push(t.ending, t.state[ENDING], end_ms, t.state[SERIAL], row)
        t.state[ENDING] += 1
    tell(t, STARTED, row)


@compiled
def advance(
    t: Told, block: IntArray, requests: IntArray, unfit: IntArray, kept: IntArray, real: FloatArray
) -> int:
    """Do what happens before the horizon; returns why it has stopped.

    If it stopped in the middle of an instant, the next call goes on there.
    """
    state, jobs, most = t.state, t.jobs, t.told.shape[0] - 2
    while True:
        if state[PHASE] == CHOOSE:
            now_ms = state[HORIZON]
            if state[COMING] < state[LAST_COMING]:
                now_ms = min(now_ms, jobs[t.coming[state[COMING]], SUBMIT_MS])
            if state[ENDING] > 0:
                now_ms = min(now_ms, t.ending[0, 0])
            if now_ms >= state[HORIZON]:
                return NEEDS_JOBS
            state[NOW] = now_ms
            state[DECIDES] = 0
            state[PHASE] = ENDS
        if state[PHASE] == ENDS:
            while state[ENDING] > 0 and t.ending[0, 0] == state[NOW]:
                if state[TOLD] >= most:
                    return FULL
                row = t.ending[0, 2]
                if jobs[row, NODE] == OUTSIDE:
                    state[ASKED] = row
                    return RELEASE
                pop(t.ending, state[ENDING])
                state[ENDING] -= 1
                if jobs[row, NODE] != RELEASED:
                    release(t, row, block, requests)
                tell(t, jobs[row, AS], row)
                state[STUCK] = -1
                state[DECIDES] = 1
            state[PHASE] = ARRIVALS
        if state[PHASE] == ARRIVALS:
            while state[COMING] < state[LAST_COMING]:
                row = t.coming[state[COMING]]
                if jobs[row, SUBMIT_MS] != state[NOW]:
                    break
                if state[TOLD] >= most:
                    return FULL
                state[COMING] += 1
                tell(t, SUBMITTED, row)
                if jobs[row, HOW] == NEVER:
                    tell(t, NEVER_FITS, row)
                    continue
                state[SERIAL] += 1
                jobs[row, ORDER] = state[SERIAL]
                push(t.waiting, state[WAITING], jobs[row, KEY], state[SERIAL], row)
                state[WAITING] += 1
                state[DECIDES] = 1
            state[PHASE] = DECIDE
        if state[PHASE] == DECIDE:
            while state[DECIDES] != 0 and state[WAITING] > 0:
                if state[TOLD] >= most:
                    return FULL
                row = t.waiting[0, 2]
                if row == state[STUCK]:
                    break
                answer = state[ANSWER]
                if answer == NOT_YET and place(t, row, block, requests, unfit, kept, real):
                    answer = YES
                if answer == NOT_YET:
                    number = jobs[row, NUMBER]
                    gpus = requests[number, ALL_GPUS]
                    spreads = requests[number, ALL_NODES] == 0 and gpus > 1
                    may_fit = gpus * requests[number, MILLI] <= state[FREE]
                    if may_fit and (spreads or not alone(t, requests, number)):
                        state[ASKED] = row
                        return PLACE
                state[ANSWER] = NOT_YET
                if answer == YES:
                    start(t, row)
                elif jobs[row, HOW] == AT_ONCE:
                    push(t.leaving, state[LEAVING], t.waiting[0, 1], t.waiting[0, 0], row)
                    state[LEAVING] += 1
                    pop(t.waiting, state[WAITING])
                    state[WAITING] -= 1
                else:
                    state[STUCK] = row
                    break
            state[PHASE] = LEAVE
        if state[PHASE] == LEAVE:
            again = state[ENDING] > 0 and t.ending[0, 0] == state[NOW]
            while state[LEAVING] > 0:
                if state[TOLD] >= most:
                    return FULL
                serial = t.leaving[0, 0]
                key = t.leaving[0, 1]
                row = t.leaving[0, 2]
                pop(t.leaving, state[LEAVING])
                state[LEAVING] -= 1
                if again:
                    push(t.waiting, state[WAITING], key, serial, row)
                    state[WAITING] += 1
                else:
                    tell(t, OUT_OF_PATIENCE, row)
            state[PHASE] = CHOOSE
