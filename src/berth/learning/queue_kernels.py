"""One GPU and its queue followed to the end, compiled: what a start is worth if a simple heuristic goes on from there.

A *heuristic* is a weighted sum of a few numbers of each combination's forecast (`_traits`); the best sum starts. What
would run out of memory, or end later together than one after the other, is never started. Letters: S seats, J jobs in
the queue, M of them seen, F traits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.arrays import FloatArray, IntArray, compiled
from berth.interference.known_speeds import MOST
from berth.network.forecast_network import (
    OF_COMBINATION,
    OF_QUEUE,
    USES,
    ForecastNetwork,
    Scratch,
    begin_score,
    new_network,
    score,
    scratch_for,
    see_combination,
    see_queue,
)
from berth.policies.colocation.future_kernels import DONE, FULL, UNKNOWN, WORK_ROWS, CardArrays, follow
from berth.policies.colocation.open_gpus import LEAD_MS

SEATS, SEEN = MOST, 5
TRAITS = 9
NETWORK = 8
"""The trait that is the network's score; it is asked where its weight is not 0."""
FULL_LINE_MS = 600_000
"""With at least this much work in the queue the first weights of a heuristic hold, with none the second."""
NEAR_MS = 60_000
GUESSES = 10
"""Decisions that go on by guessed speeds where one is unknown, to ask at once for the sets that come next: a third of
the rounds, and a sixth less time at p99 of a choice in doubt."""
NONE = -1
NOT = -1e300


class Room(NamedTuple):
    """Arrays to work in: what is compiled here allocates nothing."""

    then: IntArray  # (2 S, 3)
    mine: IntArray  # (2 S, 3)
    line: IntArray  # (J, 2)
    ends_ms: IntArray  # (2 S,)
    work: IntArray  # (WORK_ROWS, 2 S)
    traits: FloatArray  # (F,)
    allowed: NDArray[np.bool_]  # (2^M,)
    uses: FloatArray  # (A, USES): what the network is told of each application
    network: ForecastNetwork
    scratch: Scratch


NO_NETWORK = new_network(0)
NO_USES = np.zeros((0, USES))


def room_for(jobs: int, uses: FloatArray = NO_USES, network: ForecastNetwork = NO_NETWORK) -> Room:
    """Room for queues of `jobs` jobs, with what heuristics go by that ask the network."""
    seats, many, line = (
        np.zeros(2 * SEATS, np.int64),
        np.zeros((2 * SEATS, 3), np.int64),
        np.zeros((jobs, 2), np.int64),
    )
    work = np.zeros((WORK_ROWS, 2 * SEATS), np.int64)
    traits, allowed = np.zeros(TRAITS), np.zeros(1 << SEEN, np.bool_)
    scratch = scratch_for(network)
    return Room(many, many.copy(), line, seats, work, traits, allowed, uses, network, scratch)


@compiled
def _traits(
    jobs: IntArray, old: int, count: int, ends_ms: IntArray, total_ms: int, traits: FloatArray
) -> None:
    """The traits of a combination: joint progress; the sum of mean speeds, to the end and in the next minute; how many
    start; the longest of them; the first end; how many run; whether it holds. The network's score is not told here."""
    for at in range(TRAITS):
        traits[at] = 0.0
    first = 1 << 60
    for seat in range(count):
        left_ms = jobs[seat, 1] / 1000
        traits[0] += left_ms / max(total_ms, 1)
        if ends_ms[seat] > 0:
            traits[1] += left_ms / ends_ms[seat]
            traits[2] += left_ms / ends_ms[seat] * min(ends_ms[seat], NEAR_MS) / NEAR_MS
            first = min(first, ends_ms[seat])
        if seat >= old:
            traits[4] = max(traits[4], left_ms / 300_000)
    traits[3] = (count - old) / SEEN
    traits[5] = first / 300_000
    traits[6] = count / SEEN
    traits[7] = 1.0 if count == old else 0.0


@compiled
def _chosen(
    card: CardArrays,
    heuristic: FloatArray,
    tenants: IntArray,
    count: int,
    queue: IntArray,
    length: int,
    head: int,
    backlog_ms: int,
    room: Room,
    allowed: NDArray[np.bool_],
) -> tuple[int, int, int]:
    """The combination that a heuristic takes, after how long the first tenant ends, and DONE or UNKNOWN."""
    then, ends_ms, traits = room.then, room.ends_ms, room.traits
    seen = min(SEEN, length - head)
    best, most, first, holds_ms, missed = NONE, NOT, 0, 0, False
    full = min(1.0, backlog_ms / FULL_LINE_MS)
    asks = heuristic[0, NETWORK] != 0.0 or heuristic[1, NETWORK] != 0.0
    if asks:
        see_queue(room.uses, queue, length, head, room.scratch.of_queue)
        begin_score(room.network, room.scratch)
    for mask in range(allowed.shape[0]):
        allowed[mask] = False
        if mask >= 1 << seen or (mask == 0 and count == 0):
            continue
        size, alone_ms, real = count, 0, True
        for job in range(seen):
            if mask >> job & 1:
                real = real and size < SEATS
                for other in range(job):  # of equal jobs the first
                    same = queue[head + other, 0] == queue[head + job, 0]
                    same = same and queue[head + other, 1] == queue[head + job, 1]
                    real = real and (mask >> other & 1 != 0 or not same)
                if not real:
                    break
                then[size, 0] = queue[head + job, 0]
                then[size, 1] = then[size, 2] = queue[head + job, 1]
                alone_ms += queue[head + job, 1] // 1000
                size += 1
        if not real:
            continue
        for seat in range(count):
            for column in range(3):
                then[seat, column] = tenants[seat, column]
        total_ms, state = follow(card, then, size, 0, ends_ms, room.work)
        missed = missed or state == UNKNOWN
        if mask == 0:
            holds_ms, first = total_ms, 1 << 60
            for seat in range(count):
                if ends_ms[seat] > 0:
                    first = min(first, ends_ms[seat])
        if state == FULL or total_ms > holds_ms + alone_ms:
            continue
        allowed[mask] = True
        for seat in range(size):  # as it was before
            then[seat, 1] = tenants[seat, 1] if seat < count else then[seat, 2]
        _traits(then, count, size, ends_ms, total_ms, traits)
        if asks:
            see_combination(
                room.uses,
                then,
                count,
                size,
                ends_ms,
                holds_ms,
                queue,
                head,
                seen,
                mask,
                room.scratch.of_combination,
            )
            traits[NETWORK] = score(room.network, room.scratch)
        value = 0.0
        for at in range(TRAITS):
            value += traits[at] * (heuristic[0, at] * full + heuristic[1, at] * (1 - full))
        if value > most:
            best, most = mask, value
    return best, first, UNKNOWN if missed else DONE


@compiled
def _started(
    mask: int, tenants: IntArray, count: int, queue: IntArray, length: int, head: int
) -> tuple[int, int]:
    """Seat the members of a combination; the others close up. How many run then, and the queue's new head."""
    seen = min(SEEN, length - head)
    for job in range(seen):
        if mask >> job & 1:
            tenants[count, 0] = queue[head + job, 0]
            tenants[count, 1] = tenants[count, 2] = queue[head + job, 1]
            count += 1
    to = head + seen
    for job in range(seen - 1, -1, -1):
        if not mask >> job & 1:
            to -= 1
            queue[to, 0], queue[to, 1] = queue[head + job, 0], queue[head + job, 1]
    return count, to


@compiled
def _held(
    card: CardArrays, tenants: IntArray, count: int, first_ms: int, tick_ms: int, step_ms: int, room: Room
) -> tuple[int, int, int]:
    """Go on to the next moment at which to decide: tenants left, the time that went by, and whether it is known."""
    passes = first_ms - LEAD_MS if first_ms > LEAD_MS else min(first_ms, step_ms)
    now, state = follow(card, tenants, count, max(1, min(passes, tick_ms)), room.ends_ms, room.work)
    kept = 0
    for seat in range(count):
        if tenants[seat, 1] > 0:
            for column in range(3):
                tenants[kept, column] = tenants[seat, column]
            kept += 1
    for seat in range(kept, count):
        for column in range(3):
            tenants[seat, column] = 0
    return kept, now, state


@compiled
def _seated(tenants: IntArray, to: IntArray) -> int:
    """Copy the running jobs, which come first; returns their number."""
    count = 0
    for seat in range(SEATS):
        for column in range(3):
            to[seat, column] = tenants[seat, column]
        count += tenants[seat, 1] > 0
    return count


@compiled
def _work_ms(queue: IntArray, length: int, head: int) -> int:
    total = 0
    for job in range(head, length):
        total += queue[job, 1] // 1000
    return total


@compiled
def _left_ms(tenants: IntArray, count: int) -> int:
    total = 0
    for seat in range(count):
        total += tenants[seat, 1] // 1000
    return total


@compiled
def _kept(
    mine: IntArray,
    count: int,
    line: IntArray,
    length: int,
    head: int,
    now: int,
    tenants: IntArray,
    queue: IntArray,
    reached: IntArray,
) -> None:
    """Write down how far one entry has come."""
    for seat in range(SEATS):
        for column in range(3):
            tenants[seat, column] = mine[seat, column] if seat < count else 0
    for job in range(head, length):
        queue[job, 0], queue[job, 1] = line[job, 0], line[job, 1]
    reached[0], reached[1] = head, now


@compiled
def _noted(trace: IntArray, noted: int, now: int, mask: int, count: int) -> int:
    """Write down a start or an end, if there is room; how many are noted then."""
    if noted >= trace.shape[0]:
        return noted
    trace[noted, 0], trace[noted, 1], trace[noted, 2] = now, mask, count
    return noted + 1


@compiled
def worth_of(
    card: CardArrays,
    heuristics: FloatArray,
    tenants: IntArray,
    queue: IntArray,
    action: IntArray,
    behind: IntArray,
    step_ms: int,
    room: Room,
    reached: IntArray,
    out: IntArray,
    trace: IntArray,
    traced: IntArray,
) -> None:
    """Total time of each entry where `out` is NONE: first the action (NONE: that of the heuristic), then the heuristic.

    (E, 2, F), (E, S, 3), (E, J, 2), (E,), (E,): of each queue its jobs. Every start, and every end before the last
    start, is written to `trace` (E, T, 3) as time, combination (0: a job has ended) and how many run then, as far as
    there is room; `traced` (E,) is how many these are. Where a speed is unknown `out` stays NONE, `card.asked` has the
    sets and those that follow by `GUESSES`, and tenants, queue, action and `reached` (E, 2), head and time, are what
    has become of them by then: enter the speeds, and call again.
    """
    mine, line = room.mine, room.line
    for entry in range(out.shape[0]):
        if out[entry] >= 0:
            continue
        count, length = _seated(tenants[entry], mine), behind[entry]
        for job in range(length):
            line[job, 0], line[job, 1] = queue[entry, job, 0], queue[entry, job, 1]
        forced, head, now = action[entry], reached[entry, 0], reached[entry, 1]
        backlog_ms, noted = _work_ms(line, length, head), traced[entry]
        guesses = 0
        while guesses <= GUESSES:
            if head == length:
                if guesses == 0:
                    traced[entry] = noted
                    _kept(mine, count, line, length, head, now, tenants[entry], queue[entry], reached[entry])
                    action[entry] = forced
                passed, state = follow(card, mine, count, 0, room.ends_ms, room.work)
                if state != UNKNOWN and guesses == 0:
                    out[entry] = now + passed + (_left_ms(mine, count) if state == FULL else 0)
                break
            best, first, state = _chosen(
                card, heuristics[entry], mine, count, line, length, head, backlog_ms, room, room.allowed
            )
            if state == UNKNOWN and guesses == 0:
                traced[entry] = noted
                _kept(mine, count, line, length, head, now, tenants[entry], queue[entry], reached[entry])
                action[entry] = forced
            if state == UNKNOWN or guesses > 0:
                guesses += 1
            if forced != NONE:
                best, forced = forced, NONE
            if best > 0:
                count, head = _started(best, mine, count, line, length, head)
                backlog_ms = _work_ms(line, length, head)
                noted = _noted(trace[entry], noted, now, best, count)
                continue
            before = count
            count, passed, state = _held(card, mine, count, first, 1 << 40, step_ms, room)
            now += passed
            if state == FULL:  # what runs already needs more than there is, in this world: then all in turn
                if guesses == 0:
                    out[entry] = now + _left_ms(mine, count) + _work_ms(line, length, head)
                    traced[entry] = noted
                break
            if count < before:
                noted = _noted(trace[entry], noted, now, 0, count)


@compiled
def next_choice(
    card: CardArrays,
    heuristic: FloatArray,
    tenants: IntArray,
    queue: IntArray,
    head: IntArray,
    now_ms: IntArray,
    action: IntArray,
    tick_ms: int,
    step_ms: int,
    room: Room,
    allowed: NDArray[np.bool_],
    unknown: NDArray[np.bool_],
    trace: IntArray,
    traced: IntArray,
) -> None:
    """Do each world's action (NONE: nothing), then go on to where two combinations or more are allowed, or to the end.

    All in place, of E worlds; one whose head is at the queue's end and where no job runs is over. Where a speed is
    unknown a world goes no further, `unknown` (E,) says so, what is to be done is in `action`, and `card.asked` has the
    sets: learn them, and call again. Starts and ends are noted as `worth_of` notes them.
    """
    mine, length = room.mine, queue.shape[1]
    for world in range(head.shape[0]):
        unknown[world] = False
        line = queue[world]
        while True:
            count = _seated(tenants[world], mine)
            if head[world] == length:
                passed, state = follow(card, mine, count, 0, room.ends_ms, room.work)
                if state == UNKNOWN:
                    unknown[world] = True
                    break
                now_ms[world] += passed
                _seated(mine, tenants[world])
                break
            backlog_ms = _work_ms(line, length, head[world])
            best, first, state = _chosen(
                card, heuristic, mine, count, line, length, head[world], backlog_ms, room, allowed[world]
            )
            if state == UNKNOWN:
                unknown[world] = True
                break
            if action[world] == NONE:
                choices = 0
                for mask in range(allowed.shape[1]):
                    choices += allowed[world, mask]
                if choices > 1:
                    break
                action[world] = best
            if action[world] > 0:
                count, head[world] = _started(action[world], tenants[world], count, line, length, head[world])
                traced[world] = _noted(trace[world], traced[world], now_ms[world], action[world], count)
            else:
                left, passed, state = _held(card, mine, count, first, tick_ms, step_ms, room)
                if state == UNKNOWN:
                    unknown[world] = True
                    break
                _seated(mine, tenants[world])
                now_ms[world] += passed
                if left < count:
                    traced[world] = _noted(trace[world], traced[world], now_ms[world], 0, left)
            action[world] = NONE


@compiled
def see_worlds(
    card: CardArrays,
    tenants: IntArray,
    queue: IntArray,
    head: IntArray,
    offered: NDArray[np.bool_],  # (W, C)
    room: Room,
    out: NDArray[np.float32],  # (W, C, INPUTS), out where offered
) -> bool:
    """What the network sees of combinations that are offered in each world; False where a speed is unknown: enter the
    speeds, and call again. Of what runs out of memory no end is known."""
    mine, then, scratch, known = room.mine, room.then, room.scratch, True
    for world in range(head.shape[0]):
        count, line, first = _seated(tenants[world], mine), queue[world], head[world]
        see_queue(room.uses, line, queue.shape[1], first, scratch.of_queue)
        seen, holds_ms = min(SEEN, queue.shape[1] - first), 0
        for mask in range(offered.shape[1]):
            if mask > 0 and not offered[world, mask]:
                continue
            size = count
            for job in range(seen):
                if mask >> job & 1 and size < SEATS:
                    then[size, 0] = line[first + job, 0]
                    then[size, 1] = then[size, 2] = line[first + job, 1]
                    size += 1
            for seat in range(count):
                for column in range(3):
                    then[seat, column] = mine[seat, column]
            passed, state = follow(card, then, size, 0, room.ends_ms, room.work)
            known = known and state != UNKNOWN
            if mask == 0:
                holds_ms = passed
            if not offered[world, mask]:
                continue
            for seat in range(size):  # as it was before
                then[seat, 1] = mine[seat, 1] if seat < count else then[seat, 2]
            see_combination(
                room.uses,
                then,
                count,
                size,
                room.ends_ms,
                holds_ms,
                line,
                first,
                seen,
                mask,
                scratch.of_combination,
            )
            for at in range(OF_QUEUE):
                out[world, mask, at] = scratch.of_queue[at]
            for at in range(OF_COMBINATION):
                out[world, mask, OF_QUEUE + at] = scratch.of_combination[at]
    return known
