"""The future of shared GPUs, compiled: when jobs that run together end, and whether memory runs out.

`follow` is the event loop of one GPU; policies, plans and training all go by it. Rows of a series that follow each
other and are equal are one *segment*; a *class* is a row of usage that some series has. Rows, speeds and times are
those of the engine: whole per mille, work in µs, time rounded up to the millisecond. The speeds of a set of classes
stand in a table (`berth.interference.known_speeds`). A set that the table lacks is noted in `asked`, and what follows
is guessed, only to note at once the sets that come next; nothing that was guessed is kept.

Letters: S seats of a GPU; O offers (GPUs), M jobs of an offer's window, C = 2^M combinations of them (bit j of the
number is job j, 0 is none), K places: first the tenants that are there, then the window's jobs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray, compiled
from berth.interference.known_speeds import MOST, find, free_row, key_of

UNKNOWN, DONE, FULL, REFUSED = 0, 1, 2, 3
"""What is known of jobs that run together: nothing yet, their ends, that memory runs out; or that they are refused
(too many, or the same as another combination)."""

ASKED = -1
"""Stands in place of the first speed of a set that was asked for."""
GUESSED = 700
"""Speed, per mille, at which jobs of unknown speeds go on."""
NEW, ENTERED = 0, 1
"""Places in the last row of `asked`: how many sets are asked for now, and how many the table has."""
FOREVER = 1 << 60
WORK_ROWS = 6
"""Rows that `follow` works in."""


class CardArrays(NamedTuple):
    """The applications on one card under one model of interference."""

    first: IntArray  # (A,): an application's first segment
    kind: IntArray  # (segments,): the class of its use
    until_us: IntArray  # (segments,): work at which it ends, for ever of the last
    mem_mib: IntArray  # (classes,)
    capacity_mib: int
    keys: IntArray  # (H, 2): sets of classes as `berth.interference.known_speeds` has them
    speeds: NDArray[np.int16]  # (H, S): per mille, of a set's classes in ascending order
    asked: IntArray  # (N + 1, S + 2): classes of sets that the table lacks, how many they are, and their row in the
    # table; the last row has counts, see NEW. Each field costs a call time, so that these have none of their own.


@compiled
def _ask(card: CardArrays, high: int, low: int, classes: IntArray, count: int) -> None:
    """Make a row in the table for a set that it lacks, and note the set, if there is room to note it."""
    at = card.asked[-1, NEW]
    if at == card.asked.shape[0] - 1:
        return
    row = free_row(high, low, card.keys)
    card.speeds[row, 0] = ASKED
    for place in range(MOST):
        card.asked[at, place] = classes[place] if place < count else 0
    card.asked[at, MOST], card.asked[at, MOST + 1] = count, row
    card.asked[-1, NEW] += 1
    card.asked[-1, ENTERED] += 1


@compiled
def follow(
    card: CardArrays,
    jobs: IntArray,  # (S, 3): application, work left and all work in µs; the work left is changed
    count: int,
    limit_ms: int,
    ends_ms: IntArray,  # (S,), out: after how long each ends; 0 for those that have not ended
    work: IntArray,  # (WORK_ROWS, S): to work in; the last row has the speeds of the first step, out
) -> tuple[int, int]:
    """Go on for `limit_ms`, or to the end (0): the time that went by, and DONE, FULL or UNKNOWN."""
    who, kinds, order, segment, ordered, begins = work[0], work[1], work[2], work[3], work[4], work[5]
    running, missed = 0, False
    for seat in range(count):
        ends_ms[seat] = 0
        begins[seat] = 0
        if jobs[seat, 1] > 0:
            who[running] = seat
            running += 1
            segment[seat] = card.first[jobs[seat, 0]]
    now = 0
    while running > 0:
        mem = 0
        for at in range(running):
            seat = who[at]
            while card.until_us[segment[seat]] <= jobs[seat, 2] - jobs[seat, 1]:
                segment[seat] += 1
            kinds[at] = card.kind[segment[seat]]
            mem += card.mem_mib[kinds[at]]
            to = at
            while to > 0 and kinds[order[to - 1]] > kinds[at]:
                order[to] = order[to - 1]
                to -= 1
            order[to] = at
        if card.capacity_mib > 0 and mem > card.capacity_mib:
            return now, UNKNOWN if missed else FULL
        for at in range(running):
            ordered[at] = kinds[order[at]]
        high, low = key_of(ordered, running)
        found = find(high, low, card.keys)
        known = found >= 0 and card.speeds[found, 0] != ASKED
        if not known:
            missed = True
            if found < 0:
                _ask(card, high, low, ordered, running)
        passes = FOREVER
        for at in range(running):
            seat, speed = who[order[at]], card.speeds[found, at] if known else GUESSED
            if now == 0:
                begins[seat] = speed
            if speed <= 0:  # it stands still, as where no slice is left, until others end
                continue
            done, until = jobs[seat, 2] - jobs[seat, 1], card.until_us[segment[seat]]
            passes = min(passes, -(-jobs[seat, 1] // speed))
            if until < jobs[seat, 2]:
                passes = min(passes, -(-(until - done) // speed))
        if limit_ms > 0:
            passes = min(passes, limit_ms - now)
        elif passes == FOREVER:  # no job advances any more
            return now, UNKNOWN if missed else FULL
        now += passes
        for at in range(running):
            seat = who[order[at]]
            speed = card.speeds[found, at] if known else GUESSED
            jobs[seat, 1] = max(0, jobs[seat, 1] - passes * speed)
            if jobs[seat, 1] == 0:
                ends_ms[seat] = now
        kept = 0
        for at in range(running):
            if jobs[who[at], 1] > 0:
                who[kept] = who[at]
                kept += 1
        running = kept
        if limit_ms > 0 and now >= limit_ms:
            break
    return now, UNKNOWN if missed else DONE


@compiled
def _same_as_another(mask: int, jobs: IntArray, count: int) -> bool:
    """Whether it takes a job, of (M, ≥ 2), and leaves an equal one that stands before it."""
    for job in range(count):
        if mask >> job & 1:
            for other in range(job):
                same = jobs[job, 0] == jobs[other, 0] and jobs[job, 1] == jobs[other, 1]
                if same and not mask >> other & 1:
                    return True
    return False


@compiled
def until_next_row_ms(row_us: IntArray, rows: IntArray, jobs: IntArray, count: int, speeds: IntArray) -> int:
    """How long no job ends or enters a new row of its series at these speeds; 0 if none advances."""
    soonest = FOREVER
    for seat in range(count):
        if speeds[seat] <= 0:
            continue
        application, left, work = jobs[seat, 0], jobs[seat, 1], jobs[seat, 2]
        row = min((work - left) // row_us[application], rows[application] - 1)
        until = max(work - (row + 1) * row_us[application], 0) if row < rows[application] - 1 else 0
        soonest = min(soonest, -((until - left) // speeds[seat]))
    return soonest if soonest < FOREVER else 0


@compiled
def forecast(
    card: CardArrays,
    row_us: IntArray,  # (A,): work in one row of an application's series
    rows: IntArray,  # (A,): how many rows it has
    there: IntArray,  # (O, K, 4): application, work left, work (µs), …; the tenants, then the window's jobs
    tenants: IntArray,  # (O,): how many tenants there are
    window: IntArray,  # (O,): how many jobs in the window
    largest: IntArray,  # (O,): the most jobs that may start together
    status: NDArray[np.int8],  # (O, C), in and out
    ends_ms: IntArray,  # (O, C, K), out: after how long each ends; 0 for those that take no part
    next_ms: IntArray,  # (O,), out: how long no job ends or enters a new row if none starts
    jobs: IntArray,  # (S, 3): to work in
    scratch: IntArray,  # (WORK_ROWS + 2, MOST + MOST_SLOTS): to work in
) -> None:
    """Follow every combination of unknown status to its end. It stays unknown if speeds had to be asked for."""
    place, ended_ms, work = scratch[0], scratch[1], scratch[2:]
    for offer in range(there.shape[0]):
        t, m = tenants[offer], window[offer]
        for mask in range(1 << m):
            if status[offer, mask] != UNKNOWN:
                continue
            started = 0
            for job in range(m):
                started += mask >> job & 1
            if t + started > MOST or started > largest[offer] or _same_as_another(mask, there[offer, t:], m):
                status[offer, mask] = REFUSED
                continue
            size = 0
            for at in range(t + m):
                if at < t or mask >> (at - t) & 1:
                    place[size] = at
                    for column in range(3):
                        jobs[size, column] = there[offer, at, column]
                    size += 1
            _, state = follow(card, jobs, size, 0, ended_ms, work)
            if state == UNKNOWN:
                continue
            status[offer, mask] = state
            if mask == 0:
                next_ms[offer] = until_next_row_ms(row_us, rows, there[offer], t, work[WORK_ROWS - 1])
            for at in range(size):
                ends_ms[offer, mask, place[at]] = ended_ms[at] if state == DONE else 0
