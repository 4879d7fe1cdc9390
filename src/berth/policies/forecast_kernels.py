"""How the tenants of a GPU will go on, compiled: the event loop of one GPU, for many combinations at once.

Letters: O offers (GPUs), M jobs of an offer's window, C = 2^M combinations of them (bit j of the number is job j,
0 is nobody), K places: first the tenants that are there, then the window's jobs. A *class* is a row of usage that
some series has; the speeds of a set of classes stand in a table, an open-addressed hash of the sorted numbers.
Rows, speeds and times are those of the engine: whole per mille, work in µs, time rounded up to the millisecond.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.kernels import IntArray, compiled

__all__ = ["BITS", "DONE", "FULL", "MOST", "REFUSED", "UNKNOWN", "enter", "forecast", "move"]

MOST = 10
"""Tenants that a set can have."""
BITS = 12
"""Of a class in a key: 5 classes in each of two numbers."""
UNKNOWN, DONE, FULL, REFUSED = 0, 1, 2, 3
"""What is known of a combination: nothing yet, its ends, that memory runs out, that it is none (too many, or the
same as another)."""

EMPTY = -1
FOREVER = 1 << 62


@compiled
def _slot(high: int, low: int, size: int) -> int:
    """Where a key's search begins in a table of `size`, a power of two."""
    mixed = (high * 0x9E3779B1 + low * 0x85EBCA6B) ^ (low >> 23) ^ (high >> 17)
    mixed ^= mixed >> 29
    return mixed & (size - 1)


@compiled
def _find(high: int, low: int, keys: IntArray) -> int:
    """The row of a key, or −1."""
    size = keys.shape[0]
    at = _slot(high, low, size)
    while keys[at, 0] != EMPTY:
        if keys[at, 0] == high and keys[at, 1] == low:
            return at
        at = (at + 1) & (size - 1)
    return -1


@compiled
def _key(classes: IntArray, count: int) -> tuple[int, int]:
    """The key of sorted classes; 0 stands for nobody."""
    high, low = 0, 0
    for at in range(count):
        if at < MOST // 2:
            high = (high << BITS) | (classes[at] + 1)
        else:
            low = (low << BITS) | (classes[at] + 1)
    return high, low


@compiled
def enter(
    sets: IntArray,  # (n, MOST): classes, sorted
    counts: IntArray,  # (n,)
    speeds: IntArray,  # (n, MOST)
    keys: IntArray,  # (H, 2)
    known: IntArray,  # (H, MOST)
) -> int:
    """Write the speeds of sets into the table; how many were new."""
    new = 0
    size = keys.shape[0]
    for row in range(sets.shape[0]):
        high, low = _key(sets[row], counts[row])
        if _find(high, low, keys) >= 0:
            continue
        at = _slot(high, low, size)
        while keys[at, 0] != EMPTY:
            at = (at + 1) & (size - 1)
        keys[at, 0], keys[at, 1] = high, low
        for place in range(counts[row]):
            known[at, place] = speeds[row, place]
        new += 1
    return new


@compiled
def move(keys: IntArray, known: IntArray, to_keys: IntArray, to_known: IntArray) -> None:
    """Write a table into a larger, empty one."""
    size = to_keys.shape[0]
    for row in range(keys.shape[0]):
        if keys[row, 0] == EMPTY:
            continue
        at = _slot(keys[row, 0], keys[row, 1], size)
        while to_keys[at, 0] != EMPTY:
            at = (at + 1) & (size - 1)
        to_keys[at, 0], to_keys[at, 1] = keys[row, 0], keys[row, 1]
        for place in range(MOST):
            to_known[at, place] = known[row, place]


@compiled
def _same_as_another(mask: int, jobs: IntArray, first: int, count: int) -> bool:
    """Whether it takes a job and leaves an equal one that stands before it."""
    for job in range(1, count):
        if not mask >> job & 1:
            continue
        for other in range(job):
            if mask >> other & 1:
                continue
            here, there = first + job, first + other
            if jobs[here, 0] == jobs[there, 0] and jobs[here, 1] == jobs[there, 1]:
                return True
    return False


@compiled
def forecast(
    capacity_mem: int,
    first_row: IntArray,  # (A + 1,): where an application's rows begin
    row_class: IntArray,  # (R,)
    class_mem: IntArray,  # (classes,)
    interval_ms: IntArray,  # (A,)
    keys: IntArray,  # (H, 2)
    known: IntArray,  # (H, MOST)
    there: IntArray,  # (O, K, 3): application, work left in µs, work in µs; the tenants, then the window's jobs
    tenants: IntArray,  # (O,): how many tenants there are
    window: IntArray,  # (O,): how many jobs in the window
    largest: IntArray,  # (O,): the most jobs that may start together
    status: NDArray[np.int8],  # (O, C), in and out
    ends_ms: IntArray,  # (O, C, K), out: after how long each ends; 0 for those that take no part
    next_ms: IntArray,  # (O,), out: how long nobody ends or enters a new row if nobody starts
    missing: IntArray,  # (misses, MOST + 1), out: sets that the table lacks, and how many classes each has
    scratch: IntArray,  # (5, MOST): to work in
) -> int:
    """Follow every combination of unknown status to its end; how many sets were missing."""
    misses = 0
    place, left, row, sorted_class, order = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    for offer in range(there.shape[0]):
        t, m = tenants[offer], window[offer]
        for mask in range(1 << m):
            if status[offer, mask] != UNKNOWN:
                continue
            size = 0
            for at in range(t):
                if size < MOST:
                    place[size] = at
                size += 1
            started = 0
            for job in range(m):
                if mask >> job & 1:
                    started += 1
                    if size < MOST:
                        place[size] = t + job
                    size += 1
            if size > MOST or started > largest[offer] or _same_as_another(mask, there[offer], t, m):
                status[offer, mask] = REFUSED
                continue
            for at in range(size):
                left[at] = there[offer, place[at], 1]
                row[at] = -1
            now, steps = 0, 0
            missed = False
            full = False
            while size > 0:
                mem = 0
                for at in range(size):
                    application = there[offer, place[at], 0]
                    done = (there[offer, place[at], 2] - left[at]) // 1000
                    last = first_row[application + 1] - first_row[application] - 1
                    row[at] = min(done // interval_ms[application], last)
                    mem += class_mem[row_class[first_row[application] + row[at]]]
                if capacity_mem > 0 and mem > capacity_mem:
                    full = True
                    break
                for at in range(size):  # sort by class, few as they are
                    application = there[offer, place[at], 0]
                    kind = row_class[first_row[application] + row[at]]
                    to = at
                    while to > 0 and sorted_class[to - 1] > kind:
                        sorted_class[to] = sorted_class[to - 1]
                        order[to] = order[to - 1]
                        to -= 1
                    sorted_class[to] = kind
                    order[to] = at
                high, low = _key(sorted_class, size)
                found = _find(high, low, keys)
                if found < 0:
                    if misses < missing.shape[0]:
                        for at in range(size):
                            missing[misses, at] = sorted_class[at]
                        missing[misses, MOST] = size
                        misses += 1
                    missed = True
                    break
                dt = FOREVER
                for at in range(size):
                    speed = known[found, at]
                    if speed <= 0:
                        continue
                    who = order[at]
                    application = there[offer, place[who], 0]
                    dt = min(dt, -(-left[who] // speed))
                    last = first_row[application + 1] - first_row[application] - 1
                    if row[who] < last:
                        done = there[offer, place[who], 2] - left[who]
                        until = (row[who] + 1) * interval_ms[application] * 1000 - done
                        if until > 0:
                            dt = min(dt, -(-until // speed))
                if dt >= FOREVER:  # nobody advances any more
                    full = True
                    break
                if mask == 0 and steps == 0:
                    next_ms[offer] = dt
                now += dt
                steps += 1
                for at in range(size):
                    left[order[at]] -= dt * known[found, at]
                kept = 0
                for at in range(size):
                    if left[at] <= 0:
                        ends_ms[offer, mask, place[at]] = now
                    else:
                        place[kept], left[kept] = place[at], left[at]
                        kept += 1
                size = kept
            if full:
                status[offer, mask] = FULL
            elif not missed:
                status[offer, mask] = DONE
    return misses
