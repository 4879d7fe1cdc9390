"""How the tenants of a GPU will go on, compiled: the event loop of one GPU, for many combinations at once.

Letters: O offers (GPUs), M jobs of an offer's window, C = 2^M combinations of them (bit j of the number is job j,
0 is none), K places: first the tenants that are there, then the window's jobs. A *class* is a row of usage that
some series has; the speeds of a set of classes stand in a table (`berth.interference.known_speeds`).
Rows, speeds and times are those of the engine: whole per mille, work in µs, time rounded up to the millisecond.

Where the table lacks a set, it is asked for, and the combination is followed on at guessed speeds, only to ask at once
for the sets that come next; nothing that was guessed is kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray, compiled
from berth.interference.known_speeds import MOST, find, free_row, key_of

__all__ = ["DONE", "FULL", "NOT_FRESH", "REFUSED", "SCRATCH", "UNKNOWN", "forecast"]

UNKNOWN, DONE, FULL, REFUSED = 0, 1, 2, 3
"""What is known of a combination: nothing yet, its ends, that memory runs out, that it is none (too many, or the
same as another)."""

ASKED = -1
"""Stands in place of the first speed of a set that was asked for."""
NOT_FRESH = -1
"""The kind of a job that has done some of its work."""
FOREVER = 1 << 62
SCRATCH = 14
"""Rows to work in."""


@compiled
def _ask(
    high: int,
    low: int,
    classes: IntArray,
    count: int,
    keys: IntArray,
    known: IntArray,
    asked: IntArray,
    at: int,
) -> None:
    """Make a place in the table for a set that it lacks, and note the set and its place as number `at` of the asked."""
    row = free_row(high, low, keys)
    known[row, 0] = ASKED
    for place in range(MOST):
        asked[at, place] = classes[place] if place < count else 0
    asked[at, MOST], asked[at, MOST + 1] = count, row


@compiled
def _line_up(
    jobs: IntArray,  # (K, 5)
    tenants: int,
    window: int,
    line: IntArray,  # (K,), out: the places by the kinds of their jobs
    same: IntArray,  # (M,), out: of each job of the window those before it that are equal, as bits
) -> None:
    """What all combinations of an offer have in common."""
    for at in range(tenants + window):
        to = at
        while to > 0 and jobs[line[to - 1], 3] > jobs[at, 3]:
            line[to] = line[to - 1]
            to -= 1
        line[to] = at
    for job in range(window):
        same[job] = 0
        here = tenants + job
        for other in range(job):
            there = tenants + other
            if jobs[here, 0] == jobs[there, 0] and jobs[here, 1] == jobs[there, 1]:
                same[job] |= 1 << other


@compiled
def _same_as_another(mask: int, same: IntArray, count: int) -> bool:
    """Whether it takes a job and leaves an equal one that stands before it."""
    leaves = 0  # those that are equal to one that it takes
    for job in range(count):
        leaves |= same[job] * (mask >> job & 1) & ~mask
    return leaves != 0


@compiled
def _remembered(
    jobs: IntArray,  # (K, 5)
    tenants: int,
    mask: int,
    line: IntArray,  # (K,)
    count: int,
    kinds: IntArray,  # to work in
    whose: IntArray,  # out: whose each end is, as places
    keys: IntArray,
) -> int:
    """Where the ends of jobs that have all done nothing yet are kept, −1 where they are not."""
    size = 0
    for at in range(count):
        place = line[at]
        if place < tenants or mask >> (place - tenants) & 1:
            kinds[size], whose[size] = jobs[place, 3], place
            size += 1
    high, low = key_of(kinds, size)
    return find(high, low, keys)


@compiled
def _remember(
    kinds: IntArray, whose: IntArray, size: int, ends_ms: IntArray, keys: IntArray, ends: IntArray
) -> None:
    """Keep the ends of jobs that had all done nothing yet."""
    high, low = key_of(kinds, size)
    row = free_row(high, low, keys)
    for at in range(size):
        ends[row, at] = ends_ms[whose[at]]


@compiled
def forecast(
    capacity_mem: int,
    first_row: IntArray,  # (A + 1,): where an application's rows begin
    row_class: IntArray,  # (R,)
    class_mem: IntArray,  # (classes,)
    interval_ms: IntArray,  # (A,)
    keys: IntArray,  # (H, 2)
    known: IntArray,  # (H, MOST)
    fresh_keys: IntArray,  # (F, 2): kinds of jobs that have all done nothing yet
    fresh_ends: IntArray,  # (F, MOST): after how long each ended; 0 where memory ran out
    there: IntArray,  # (O, K, 5): application, work left, work (µs), kind, …; the tenants, then the window's jobs
    tenants: IntArray,  # (O,): how many tenants there are
    window: IntArray,  # (O,): how many jobs in the window
    largest: IntArray,  # (O,): the most jobs that may start together
    status: NDArray[np.int8],  # (O, C), in and out
    ends_ms: IntArray,  # (O, C, K), out: after how long each ends; 0 for those that take no part
    next_ms: IntArray,  # (O,), out: how long no job ends or enters a new row if none starts
    asked: IntArray,  # (misses, MOST + 2), out: sets that the table lacks, how many classes each has, and its place
    entered: IntArray,  # (2,), in and out: how many entries the table of speeds and that of fresh jobs have
    scratch: IntArray,  # (SCRATCH, MOST + MOST_SLOTS): to work in
) -> int:
    """Follow every combination of unknown status to its end; how many sets were missing, −1: the table is full.

    `_run` of `learning/queue_kernels.py` is its twin for one GPU; `tests/learning/test_rollouts.py` holds both equal.
    """
    misses = 0
    place, left, row, sorted_class, order = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    pace, kinds, whose, kind = scratch[5], scratch[6], scratch[7], scratch[8]
    # Of each job its last row, how much work a row is, and how much is left when it leaves the row, in µs.
    last, every, until = scratch[9], scratch[10], scratch[11]
    line, same = scratch[12], scratch[13]
    room = min(asked.shape[0], keys.shape[0] // 2 - entered[0])
    if room <= 0:
        return -1
    for offer in range(there.shape[0]):
        t, m = tenants[offer], window[offer]
        begun = t > MOST  # whether any tenant has done some of its work; of too many nothing is looked at
        if not begun:
            _line_up(there[offer], t, m, line, same)
            for at in range(t):
                begun = begun or there[offer, at, 3] == NOT_FRESH
        for mask in range(1 << m):
            if status[offer, mask] != UNKNOWN:
                continue
            started, begins = 0, True
            for job in range(m):
                if mask >> job & 1:
                    started += 1
                    begins = begins and there[offer, t + job, 3] != NOT_FRESH
            size = t + started
            if size > MOST or started > largest[offer] or _same_as_another(mask, same, m):
                status[offer, mask] = REFUSED
                continue
            # What comes of none tells when the tenants' use changes, which is not kept.
            fresh = mask > 0 and begins and not begun
            if fresh:
                found = _remembered(there[offer], t, mask, line, t + m, kinds, whose, fresh_keys)
                if found >= 0:
                    for at in range(size):
                        ends_ms[offer, mask, whose[at]] = fresh_ends[found, at]
                    status[offer, mask] = DONE if fresh_ends[found, 0] > 0 else FULL
                    continue
            size = 0
            for at in range(t + m):
                if at < t or mask >> (at - t) & 1:
                    place[size] = at
                    size += 1
            for at in range(size):
                application = there[offer, place[at], 0]
                left[at] = there[offer, place[at], 1]
                begin = first_row[application]
                last[at] = first_row[application + 1] - 1
                every[at] = interval_ms[application] * 1000
                work = there[offer, place[at], 2]
                behind = min((work - left[at]) // every[at], last[at] - begin)
                row[at] = begin + behind
                until[at] = max(work - (behind + 1) * every[at], 0) if row[at] < last[at] else 0
                kind[at] = row_class[row[at]]
                pace[at] = 1000
            participants = size
            now, steps = 0, 0
            missed = False
            full = False
            others = True  # whether any job's class is another one than before, or a job has left
            while size > 0:
                if others:
                    mem = 0
                    for at in range(size):
                        mem += class_mem[kind[at]]
                    if capacity_mem > 0 and mem > capacity_mem:
                        full = True
                        break
                    for at in range(size):  # sort by class, few as they are
                        to = at
                        while to > 0 and sorted_class[to - 1] > kind[at]:
                            sorted_class[to] = sorted_class[to - 1]
                            order[to] = order[to - 1]
                            to -= 1
                        sorted_class[to] = kind[at]
                        order[to] = at
                    high, low = key_of(sorted_class, size)
                    found = find(high, low, keys)
                    if found >= 0 and known[found, 0] != ASKED:
                        for at in range(size):
                            pace[order[at]] = known[found, at]
                    else:
                        missed = True
                        if found < 0:
                            if misses >= room:
                                break
                            _ask(high, low, sorted_class, size, keys, known, asked, misses)
                            misses += 1
                dt = FOREVER
                for at in range(size):
                    if pace[at] > 0:
                        dt = min(dt, -((until[at] - left[at]) // pace[at]))
                if dt >= FOREVER:  # no job advances any more
                    full = True
                    break
                if mask == 0 and steps == 0:
                    next_ms[offer] = dt
                now += dt
                steps += 1
                kept = 0
                others = False
                for at in range(size):
                    left[at] -= dt * pace[at]
                    if left[at] <= 0:
                        ends_ms[offer, mask, place[at]] = now
                        others = True
                        continue
                    while left[at] <= until[at]:  # above 0, so that a further row follows
                        row[at] += 1
                        until[at] = max(until[at] - every[at], 0) if row[at] < last[at] else 0
                    others = others or kind[at] != row_class[row[at]]
                    kind[at] = row_class[row[at]]
                    if kept < at:
                        place[kept], left[kept], pace[kept] = place[at], left[at], pace[at]
                        row[kept], kind[kept], last[kept] = row[at], kind[at], last[at]
                        every[kept], until[kept] = every[at], until[at]
                    kept += 1
                size = kept
            if missed:
                continue
            status[offer, mask] = FULL if full else DONE
            if full:
                for at in range(ends_ms.shape[2]):
                    ends_ms[offer, mask, at] = 0
            if fresh and 2 * (entered[1] + 1) <= fresh_keys.shape[0]:
                _remember(kinds, whose, participants, ends_ms[offer, mask], fresh_keys, fresh_ends)
                entered[1] += 1
    entered[0] += misses
    return misses
