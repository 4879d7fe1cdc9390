"""What Numba compiles for stretches: many instants in one call, in which jobs only come, start and end.

Letters: J jobs, S slots of all of them, T request types, N nodes with G slots each. `advance` does to the cluster's
arrays what `Run`, the queue, and `Ordered` or `Easy` do job by job, using their kernels; tests/engine/test_stretch.py
holds the two equal.
"""

from __future__ import annotations

from typing import NamedTuple

from berth.arrays import BoolArray, FloatArray, IntArray, compiled, inlined
from berth.cluster.amounts import UNCOUNTED
from berth.cluster.kernels import (
    ALL_GPUS,
    ALL_NODES,
    FREE_AT,
    GPU_MEM,
    MILLI,
    choose_devices,
    compiled_arrays_of,
    give_back,
    spread_now,
    take,
)
from berth.model import FOREVER_MS
from berth.policies.placements.score_kernels import ANY_FIT, best_node, compiled_cache_in, first_node
from berth.policies.schemes.easy_kernels import (
    choose_slots,
    find_room,
    fits_in_both,
    note_end,
    spares,
    sparing_nodes,
    take_slots,
)
from berth.policies.schemes.waiting_kernels import (
    COUNT,
    FIRST,
    FULL,
    IN_THE_WAY,
    NO_ROW,
    OPEN,
    ROOM,
    STATE,
    add_waiting,
    fits_again,
    move_lane,
    next_waiting,
    remove_waiting,
)

# What `state` holds: whether the scheme is EASY, the placement's kernel and whether it takes the tightest GPUs; the
# next job to come and the time before which a stretch ends; how many events happened, ends due, and slots in use; how
# many jobs started, wait, and are in the heap `queue`; free milli; the job that came first and did not fit.
EASY, KERNEL, TIGHTEST, NEXT, HORIZON_MS, HAPPENED, DUE, POOLED, STARTED, WAITING, QUEUED, FREE, STUCK = (
    range(13)
)
# For EASY alone: which places of `by_end` are in use, ends and whether nodes changed since the last decision, places of
# `lane_pool` in use, whether a lane is in the way; the job that the reservation is for, whether that still holds, how
# many slots it takes, when it begins, and the GPU milli that it leaves others.
ENDS_FIRST, ENDS_COUNT, OPENED, CHANGED, LANES_POOLED, SOME_IN_THE_WAY = range(13, 19)
HEAD, KNOWN, HEAD_COUNT, RESERVED_MS, SPARE_MILLI = range(19, 24)
STATE_SIZE = 24

# Columns of a job: when it comes, how long it runs, its request type, what becomes of it when it comes, what its end
# is, what the order sorts by, its expected run time, where its slots begin, when it started, and the number of that
# start: 0 before it, GONE at the end.
SUBMIT_MS, RUN_MS, NUMBER, HOW, END_AS, KEY, LENGTH_MS, FIRST_SLOT, START_MS, START = range(10)
COLUMNS = 10

WAITS, AT_ONCE, NEVER = range(3)
"""HOW: it waits, it leaves if it does not start when it comes, or it is rejected when it comes."""

SUBMIT, BEGIN, FINISH, AT_LIMIT, NEVER_FITS, OUT_OF_PATIENCE = range(6)
"""What happened to a job. Column END_AS has FINISH, or AT_LIMIT if its time limit ends it."""

GONE = -1
AT_A_TIME = 16_384
"""Events after which a call ends, at the end of the instant."""
DRIFT = 4096
"""By how many places the runs in `by_end` move before they are moved back."""


class StretchArrays(NamedTuple):
    """The arrays of a stretch; those from `runs` on are for EASY alone. The placement's are those of its `Formula`."""

    state: IntArray  # (STATE_SIZE,)
    jobs: IntArray  # (J, COLUMNS), as they come
    slots: IntArray  # (S, 2): node and index
    ending: IntArray  # (J, 3): a heap of end, number of the start, job
    queue: IntArray  # (J, 3): a heap of key, job, job: who waits; under EASY, those that came since the last decision
    happened: IntArray  # (3·J, 3): when, what, job
    cache_rows: IntArray  # (T,): by request type, its row in what the placement keeps
    chosen: IntArray  # (G,), scratch
    scratch: IntArray  # (3, N + G), scratch
    unfit: IntArray
    cache: IntArray
    real: FloatArray
    runs: IntArray  # (J, RUN_COLUMNS)
    by_end: IntArray  # (2·J + DRIFT,)
    waiting: IntArray  # (J, ROW_COLUMNS)
    lanes: IntArray  # (T, LANE_COLUMNS)
    active: IntArray  # (T + 1,)
    lane_pool: IntArray  # (P,)
    marks: IntArray  # (N,): the versions of nodes that were seen
    room: IntArray  # what is free when the reservation begins
    both: IntArray  # scratch of that size
    head_slots: IntArray  # (N·(G + 1), 2)
    others: IntArray  # (N·(G + 1), 2), scratch
    by_rank: IntArray  # (N,)
    there: IntArray  # (N,), scratch
    found: BoolArray  # (N,), scratch
    window_ms: IntArray  # (1,), scratch
    out: IntArray  # (2,), scratch


@compiled
def copy(source: IntArray, first: int, target: IntArray, to: int, count: int) -> None:
    """Copy this many rows. A slice would be allocated."""
    for place in range(count):
        for column in range(source.shape[1]):
            target[to + place, column] = source[first + place, column]


@compiled
def push(heap: IntArray, length: int, first: int, second: int, row: int) -> None:
    """Put an entry on a heap of this length."""
    at = length
    while at > 0:
        above = (at - 1) // 2
        if heap[above, 0] < first or (heap[above, 0] == first and heap[above, 1] < second):
            break
        copy(heap, above, heap, at, 1)
        at = above
    heap[at] = first, second, row


@compiled
def pop(heap: IntArray, length: int) -> None:
    """Take the least entry off a heap of this length."""
    last = length - 1
    first, second, row = heap[last, 0], heap[last, 1], heap[last, 2]
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
        copy(heap, below, heap, at, 1)
        at = below
    heap[at] = first, second, row


@inlined
def note(t: StretchArrays, now_ms: int, what: int, job: int) -> None:
    """Note what happened; a job that has ended or was rejected is gone."""
    t.happened[t.state[HAPPENED]] = now_ms, what, job
    t.state[HAPPENED] += 1
    if what >= FINISH:
        t.jobs[job, START] = GONE


@compiled
def choose(t: StretchArrays, job: int, block: IntArray, requests: IntArray) -> int:
    """Write the slots that the placement says for a job into the cluster's `slots`; how many, 0 if it fits nowhere."""
    number = t.jobs[job, NUMBER]
    request = requests[number]
    gpus = request[ALL_GPUS]
    if gpus * request[MILLI] > t.state[FREE]:
        return 0
    kernel = t.state[KERNEL]
    row = t.cache_rows[number]
    arrays = compiled_arrays_of(block)
    if kernel == ANY_FIT:
        node = first_node(block, requests, number, row, t.unfit)
        for at in range(gpus if node >= 0 else 0):
            t.chosen[at] = t.unfit[row, at]
    else:
        node = best_node(kernel, block, requests, number, row, t.cache, t.real)
        if node >= 0 and gpus == 1:
            t.chosen[0] = compiled_cache_in(t.cache).devices[row, node]
        elif node >= 0 and gpus > 1:
            tightest = t.state[TIGHTEST] != 0
            choose_devices(node, request, arrays.free_milli, arrays.free_gpu_mem, tightest, t.chosen)
    if node >= 0:
        on_node(arrays.slots, node, gpus, t.chosen)
    spreads = node < 0 and request[ALL_NODES] == 0
    count: int = max(1, gpus) if node >= 0 else 0
    return spread_now(block, requests, number, arrays.slots, t.scratch) if spreads else count


@inlined
def on_node(slots: IntArray, node: int, gpus: int, chosen: IntArray) -> None:
    """Write down slots on one node."""
    slots[0] = node, -1
    for at in range(gpus):
        slots[at] = node, chosen[at]


@compiled
def start(t: StretchArrays, now_ms: int, job: int, count: int, block: IntArray, requests: IntArray) -> int:
    """Let a job run from now on, on what `choose` wrote; returns when EASY expects its end."""
    state, row = t.state, t.jobs[job]
    number = row[NUMBER]
    milli, gpu_mem = requests[number, MILLI], requests[number, GPU_MEM]
    slots = compiled_arrays_of(block).slots
    first = state[POOLED]
    copy(slots, 0, t.slots, first, count)
    take(block, requests, number, milli, gpu_mem, slots[0, 0], slots[0, 1], count)
    state[POOLED] += count
    state[FREE] -= requests[number, ALL_GPUS] * milli
    state[WAITING] -= 1
    state[CHANGED] = 1
    state[STARTED] += 1
    row[FIRST_SLOT], row[START_MS], row[START] = first, now_ms, state[STARTED]
    end_ms = now_ms + row[RUN_MS]
    if end_ms < FOREVER_MS:
        push(t.ending, state[DUE], end_ms, state[STARTED], job)
        state[DUE] += 1
    note(t, now_ms, BEGIN, job)
    if not state[EASY]:
        return 0
    if state[ENDS_FIRST] >= state[ENDS_COUNT] + DRIFT:
        for place in range(state[ENDS_COUNT]):
            t.by_end[place] = t.by_end[state[ENDS_FIRST] + place]
        state[ENDS_FIRST] = 0
    expected_ms = now_ms + row[LENGTH_MS] if row[LENGTH_MS] < FOREVER_MS else FOREVER_MS
    ends = state[ENDS_FIRST], state[ENDS_COUNT]
    note_end(
        t.runs, t.by_end, ends[0], ends[1], requests, number, job, expected_ms, milli, gpu_mem, first, count
    )
    state[ENDS_COUNT] += 1
    return expected_ms


@compiled
def release(t: StretchArrays, job: int, block: IntArray, requests: IntArray) -> None:
    """Give back what a job took."""
    number, first = t.jobs[job, NUMBER], t.jobs[job, FIRST_SLOT]
    count = max(1, requests[number, ALL_GPUS])
    milli = requests[number, MILLI]
    copy(t.slots, first, compiled_arrays_of(block).slots, 0, count)
    node, index = t.slots[first, 0], t.slots[first, 1]
    give_back(block, requests, number, milli, requests[number, GPU_MEM], node, index, count)
    t.state[FREE] += requests[number, ALL_GPUS] * milli
    t.state[CHANGED] = 1


@compiled
def advance(t: StretchArrays, block: IntArray, requests: IntArray) -> bool:
    """Do all that happens until there are many events; False if it was all before the horizon."""
    state, jobs = t.state, t.jobs
    while state[HAPPENED] < AT_A_TIME:
        now_ms = state[HORIZON_MS]
        first = state[NEXT]
        if first < jobs.shape[0]:
            now_ms = min(now_ms, jobs[first, SUBMIT_MS])
        if state[DUE] > 0:
            now_ms = min(now_ms, t.ending[0, 0])
        if now_ms >= state[HORIZON_MS]:
            return False
        something = False
        while state[DUE] > 0 and t.ending[0, 0] == now_ms:
            job = t.ending[0, 2]
            pop(t.ending, state[DUE])
            state[DUE] -= 1
            release(t, job, block, requests)
            note(t, now_ms, jobs[job, END_AS], job)
            state[STUCK] = NO_ROW
            state[OPENED] += 1
            something = True
        while state[NEXT] < jobs.shape[0] and jobs[state[NEXT], SUBMIT_MS] == now_ms:
            job = state[NEXT]
            state[NEXT] += 1
            note(t, now_ms, SUBMIT, job)
            if jobs[job, HOW] == NEVER:
                note(t, now_ms, NEVER_FITS, job)
                continue
            push(t.queue, state[QUEUED], jobs[job, KEY], job, job)
            state[QUEUED] += 1
            state[WAITING] += 1
            something = True
        if not something or state[WAITING] == 0:
            continue
        if state[EASY]:
            decide_easy(t, now_ms, block, requests)
            continue
        decide(t, now_ms, block, requests)
        for job in range(first, state[NEXT]):
            if jobs[job, START] == 0 and jobs[job, HOW] == AT_ONCE:
                state[WAITING] -= 1
                note(t, now_ms, OUT_OF_PATIENCE, job)
    return True


@inlined
def decide(t: StretchArrays, now_ms: int, block: IntArray, requests: IntArray) -> None:
    """Start the first job, then the next, until one does not fit; those that leave at once hold up no others."""
    state = t.state
    while state[QUEUED] > 0 and t.queue[0, 1] != state[STUCK]:
        job = t.queue[0, 1]
        count = choose(t, job, block, requests)
        if count == 0 and t.jobs[job, HOW] == WAITS:
            state[STUCK] = job
            return
        pop(t.queue, state[QUEUED])
        state[QUEUED] -= 1
        if count > 0:
            start(t, now_ms, job, count, block, requests)


# EASY


@inlined
def decide_easy(t: StretchArrays, now_ms: int, block: IntArray, requests: IntArray) -> None:
    """Start jobs in order until one does not fit, then those that fill gaps before and next to its reservation."""
    state = t.state
    catch_up(t)
    head = NO_ROW
    while state[WAITING] > 0 and head == NO_ROW:
        job = first_waiting(t)
        count = 0 if job == state[STUCK] else choose(t, job, block, requests)
        if count == 0:
            head = job
            break
        leave(t, job)
        end_ms = start(t, now_ms, job, count, block, requests)
        if state[HEAD] == job:
            state[KNOWN] = 0
        elif state[KNOWN] and state[RESERVED_MS] < end_ms:
            outlast(t, job, count, block, requests)
    state[STUCK] = head
    if head == NO_ROW or state[WAITING] == 1 or state[HEAD] != head:
        state[KNOWN] = 0  # a reservation of another, or of one behind which no job waits, is let go
    if head == NO_ROW or state[WAITING] == 1:
        return
    settle(t)
    types = t.active[1 : 1 + t.active[0]]
    if state[CHANGED]:
        fits_again(block, requests, t.lanes, types, t.marks, state[FREE])
        state[CHANGED] = 0
    t.lanes[t.jobs[head, NUMBER], STATE] = FULL
    if not state[KNOWN] or state[RESERVED_MS] <= now_ms:
        if next_job(t, requests, UNCOUNTED, UNCOUNTED, FOREVER_MS, NO_ROW) == NO_ROW:
            return  # nothing fits, whatever the reservation
        reserve(t, head, now_ms, block, requests)
    fill_gaps(t, now_ms, block, requests)


@inlined
def catch_up(t: StretchArrays) -> None:
    """Drop the runs that have ended; the reservation holds if they ended in the order in which they were to."""
    state, jobs = t.state, t.jobs
    dropped = 0
    while state[ENDS_COUNT] > 0 and jobs[t.by_end[state[ENDS_FIRST]], START] == GONE:
        state[ENDS_FIRST] += 1
        state[ENDS_COUNT] -= 1
        dropped += 1
    if dropped != state[OPENED]:
        state[KNOWN] = 0
        first = state[ENDS_FIRST]
        to = first
        for place in range(first, first + state[ENDS_COUNT]):
            if jobs[t.by_end[place], START] != GONE:
                t.by_end[to] = t.by_end[place]
                to += 1
        state[ENDS_COUNT] = to - first
    state[OPENED] = 0


@inlined
def first_waiting(t: StretchArrays) -> int:
    """The first of the waiting jobs, in the order of the key."""
    first = t.queue[0, 1] if t.state[QUEUED] > 0 else NO_ROW
    for place in range(1, t.active[0] + 1):
        job = t.lane_pool[t.lanes[t.active[place], FIRST]]
        if first == NO_ROW or (t.jobs[job, KEY], job) < (t.jobs[first, KEY], first):
            first = job
    return first


@inlined
def leave(t: StretchArrays, job: int) -> None:
    """Take a job that is the first, or in a lane, out of what waits."""
    if t.state[QUEUED] > 0 and t.queue[0, 1] == job:
        pop(t.queue, t.state[QUEUED])
        t.state[QUEUED] -= 1
    else:
        remove_waiting(t.waiting, t.lanes, t.active, t.lane_pool, job)


@inlined
def settle(t: StretchArrays) -> None:
    """Sort the jobs that have come into the lanes of their request types."""
    state, lanes = t.state, t.lanes
    for place in range(state[QUEUED]):
        job = t.queue[place, 1]
        number = t.jobs[job, NUMBER]
        if lanes[number, COUNT] == lanes[number, ROOM]:
            state[LANES_POOLED] = move_lane(lanes, t.lane_pool, number, state[LANES_POOLED])
        key, length_ms = t.jobs[job, KEY], t.jobs[job, LENGTH_MS]
        add_waiting(t.waiting, lanes, t.active, t.lane_pool, job, number, key, job, length_ms)
    state[QUEUED] = 0


@inlined
def next_job(
    t: StretchArrays, requests: IntArray, free_milli: int, spare_milli: int, window_ms: int, after: int
) -> int:
    """The first job that may start, or the first behind this one; NO_ROW for none."""
    t.window_ms[0] = window_ms
    return next_waiting(
        t.waiting, t.lanes, t.active, t.lane_pool, requests, free_milli, spare_milli, t.window_ms, after
    )


@inlined
def reserve(t: StretchArrays, head: int, now_ms: int, block: IntArray, requests: IntArray) -> None:
    """Find when the first job can start, and what that leaves others."""
    state = t.state
    for place in range(t.room.shape[0]):
        t.room[place] = block[FREE_AT + place]
    number, first, count = t.jobs[head, NUMBER], state[ENDS_FIRST], state[ENDS_COUNT]
    state[RESERVED_MS] = find_room(
        block, requests, number, t.room, t.runs, t.by_end, first, count, t.slots, now_ms, state[FREE], t.by_rank,
        t.head_slots, t.scratch, t.there, t.out,
    )  # fmt: skip
    state[HEAD], state[KNOWN], state[HEAD_COUNT] = head, 1, t.out[0]
    state[SPARE_MILLI] = t.out[1] if t.out[0] > 0 else UNCOUNTED
    if state[SOME_IN_THE_WAY]:
        for number in range(t.lanes.shape[0]):
            if t.lanes[number, STATE] == IN_THE_WAY:
                t.lanes[number, STATE] = OPEN
        state[SOME_IN_THE_WAY] = 0


@inlined
def fill_gaps(t: StretchArrays, now_ms: int, block: IntArray, requests: IntArray) -> None:
    """Start the jobs that end before the reservation, or leave the first job room then."""
    state = t.state
    reserved_ms, spare_milli = state[RESERVED_MS], state[SPARE_MILLI]
    window_ms = reserved_ms - now_ms
    job = next_job(t, requests, state[FREE], spare_milli, window_ms, NO_ROW)
    while job != NO_ROW:
        number = t.jobs[job, NUMBER]
        count = choose(t, job, block, requests)
        if count == 0:
            t.lanes[number, STATE] = FULL
        else:
            late = reserved_ms < now_ms + t.jobs[job, LENGTH_MS]
            slots = compiled_arrays_of(block).slots
            if late and not does_spare(t, number, slots, count, block, requests):
                count = sparing_slots(t, number, slots, block, requests)
            if count == 0:
                t.lanes[number, STATE] = IN_THE_WAY
                state[SOME_IN_THE_WAY] = 1
            else:
                leave(t, job)
                end_ms = start(t, now_ms, job, count, block, requests)
                if reserved_ms < end_ms:
                    outlast(t, job, count, block, requests)
        job = next_job(t, requests, state[FREE], spare_milli, window_ms, job)


@inlined
def outlast(t: StretchArrays, job: int, count: int, block: IntArray, requests: IntArray) -> None:
    """A job has started that is expected to end after the reservation begins: it takes room, or that is found anew."""
    number, first = t.jobs[job, NUMBER], t.jobs[job, FIRST_SLOT]
    slots = t.slots[first : first + count]
    if does_spare(t, number, slots, count, block, requests):
        take_slots(t.room, requests, number, slots, count, -1, t.there, block[1])
    else:
        t.state[KNOWN] = 0


@inlined
def does_spare(
    t: StretchArrays, number: int, slots: IntArray, count: int, block: IntArray, requests: IntArray
) -> bool:
    """Whether a job of this request type on these slots leaves the first job room."""
    head, its = t.jobs[t.state[HEAD], NUMBER], t.state[HEAD_COUNT]
    return spares(
        block, requests, head, number, t.room, t.head_slots, its, slots, count, t.by_rank, t.others, t.scratch, t.there
    )  # fmt: skip


@inlined
def sparing_slots(t: StretchArrays, number: int, slots: IntArray, block: IntArray, requests: IntArray) -> int:
    """Write slots that fit now and leave the first job what it needs; how many, 0 where there are none."""
    request, head = requests[number], t.jobs[t.state[HEAD], NUMBER]
    if request[ALL_NODES] == 1 and requests[head, ALL_NODES] != 0:
        arrays = compiled_arrays_of(block)
        count = t.state[HEAD_COUNT]
        sparing_nodes(
            block, requests, head, number, t.room, t.head_slots, count, t.there, t.scratch[1], t.found
        )
        for place in range(t.by_rank.shape[0]):
            node = t.by_rank[place]
            if not t.found[node]:
                continue
            choose_devices(node, request, arrays.free_milli, arrays.free_gpu_mem, True, t.chosen)
            on_node(slots, node, request[ALL_GPUS], t.chosen)
            taken: int = max(1, request[ALL_GPUS])
            if does_spare(t, number, slots, taken, block, requests):
                return taken
        return 0
    if not fits_in_both(block, requests, number, t.room):
        return 0
    for place in range(t.room.shape[0]):
        t.both[place] = min(block[FREE_AT + place], t.room[place])
    chosen: int = choose_slots(block, requests, number, t.both, t.by_rank, slots, t.scratch)
    return chosen
