"""What Numba compiles for the waiting jobs by request type: which of them may start next.

Letters: W rows of waiting jobs, T request types, P places of the pool. A *lane* is the waiting jobs of a request
type, in order: rows that lie one behind the other in the pool.
"""

from __future__ import annotations

from berth.arrays import IntArray, compiled
from berth.cluster.kernels import ALL_GPUS, ALL_NODES, MILLI, compiled_arrays_of
from berth.policies.schemes.easy_kernels import Room, counted_on

# Columns of a waiting job: its request type, what the order sorts by, and its expected run time.
TYPE, KEY, SERIAL, LENGTH_MS = range(4)
ROW_COLUMNS = 4

# Columns of a lane: where it begins in the pool, how many wait, how many it has room for, the least expected run time
# (−1 if that is to be found anew), its place among the lanes in which jobs wait, and whether its jobs may start.
FIRST, COUNT, ROOM, LEAST_MS, ACTIVE_AT, STATE = range(6)
LANE_COLUMNS = 6

NO_ROW = -1

OPEN, FULL, IN_THE_WAY = range(3)
"""Whether jobs of a request type may start: not known; they fit nowhere; they fit, but those that end late would take
what a reservation needs."""


@compiled
def place_in_lane(rows: IntArray, lanes: IntArray, pool: IntArray, number: int, key: int, serial: int) -> int:
    """How many jobs of a lane stand at or before this key and serial."""
    first = lanes[number, FIRST]
    low, high = 0, lanes[number, COUNT]
    while low < high:
        middle = (low + high) // 2
        row = pool[first + middle]
        if rows[row, KEY] < key or (rows[row, KEY] == key and rows[row, SERIAL] <= serial):
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def add_waiting(
    rows: IntArray,  # (W, ROW_COLUMNS), written
    lanes: IntArray,  # (T, LANE_COLUMNS), written; the lane has room for one more
    active: IntArray,  # (T + 1,), written: how many lanes jobs wait in, then their numbers
    pool: IntArray,  # (P,), written
    row: int,
    number: int,
    key: int,
    serial: int,
    length_ms: int,
) -> None:
    """A job waits from now on."""
    rows[row, TYPE] = number
    rows[row, KEY] = key
    rows[row, SERIAL] = serial
    rows[row, LENGTH_MS] = length_ms
    at = place_in_lane(rows, lanes, pool, number, key, serial)
    first = lanes[number, FIRST]
    count = lanes[number, COUNT]
    for place in range(first + count, first + at, -1):
        pool[place] = pool[place - 1]
    pool[first + at] = row
    lanes[number, COUNT] = count + 1
    if count == 0:
        active[0] += 1
        active[active[0]] = number
        lanes[number, ACTIVE_AT] = active[0]
        lanes[number, LEAST_MS] = length_ms
        lanes[number, STATE] = OPEN
    elif lanes[number, LEAST_MS] > length_ms:
        lanes[number, LEAST_MS] = length_ms


@compiled
def remove_waiting(
    rows: IntArray,  # (W, ROW_COLUMNS)
    lanes: IntArray,  # (T, LANE_COLUMNS), written
    active: IntArray,  # (T + 1,), written
    pool: IntArray,  # (P,), written
    row: int,
) -> None:
    """A job waits no more."""
    number = rows[row, TYPE]
    at = place_in_lane(rows, lanes, pool, number, rows[row, KEY], rows[row, SERIAL]) - 1
    first = lanes[number, FIRST]
    count = lanes[number, COUNT] - 1
    lanes[number, COUNT] = count
    if at == 0:
        lanes[number, FIRST] = first + 1
        lanes[number, ROOM] -= 1
    else:
        for place in range(first + at, first + count):
            pool[place] = pool[place + 1]
    if count == 0:
        last = active[active[0]]
        active[lanes[number, ACTIVE_AT]] = last
        lanes[last, ACTIVE_AT] = lanes[number, ACTIVE_AT]
        active[0] -= 1
    elif rows[row, LENGTH_MS] == lanes[number, LEAST_MS]:
        lanes[number, LEAST_MS] = -1


@compiled
def move_lane(lanes: IntArray, pool: IntArray, number: int, pooled: int) -> int:
    """Give a lane twice the room that its jobs take, from this place of the pool on; returns where that ends."""
    first = lanes[number, FIRST]
    for place in range(lanes[number, COUNT]):
        pool[pooled + place] = pool[first + place]
    lanes[number, FIRST] = pooled
    room: int = 2 * lanes[number, COUNT] + 8
    lanes[number, ROOM] = room
    return pooled + room


@compiled
def repack(lanes: IntArray, pool: IntArray, into: IntArray) -> int:
    """Move all lanes into another pool, without gaps; returns where they end."""
    pooled = 0
    for number in range(lanes.shape[0]):
        first = lanes[number, FIRST]
        lanes[number, FIRST], lanes[number, ROOM] = pooled, lanes[number, COUNT]
        for place in range(first, first + lanes[number, COUNT]):
            into[pooled] = pool[place]
            pooled += 1
    return pooled


@compiled
def next_waiting(
    rows: IntArray,  # (W, ROW_COLUMNS)
    lanes: IntArray,  # (T, LANE_COLUMNS), written: the least run times, and what is found full
    active: IntArray,  # (T + 1,)
    pool: IntArray,  # (P,)
    requests: IntArray,
    free_milli: int,  # what asks for more GPU milli is full
    spare_milli: int,  # what asks for more GPU milli is in the way
    windows_ms: IntArray,  # (T,), or (1,) for all: how long a job that is in the way may run at most
    after: int,  # a row: jobs that stand behind it are looked at; NO_ROW for all
) -> int:
    """The row of the first job that may start; NO_ROW for none."""
    best = NO_ROW
    for place in range(1, active[0] + 1):
        number = active[place]
        # Less one, for the milli of a gang is a mean, rounded up.
        asked_milli = requests[number, ALL_GPUS] * (requests[number, MILLI] - 1)
        if lanes[number, STATE] == OPEN and asked_milli > free_milli:
            lanes[number, STATE] = FULL
        if lanes[number, STATE] == FULL:
            continue
        first = lanes[number, FIRST]
        count = lanes[number, COUNT]
        window_ms = windows_ms[min(number, windows_ms.shape[0] - 1)]
        in_the_way = lanes[number, STATE] == IN_THE_WAY or asked_milli > spare_milli
        if in_the_way:
            if lanes[number, LEAST_MS] < 0:
                least_ms = rows[pool[first], LENGTH_MS]
                for at in range(first + 1, first + count):
                    least_ms = min(least_ms, rows[pool[at], LENGTH_MS])
                lanes[number, LEAST_MS] = least_ms
            if lanes[number, LEAST_MS] > window_ms:
                continue
        at = 0
        if after != NO_ROW:
            at = place_in_lane(rows, lanes, pool, number, rows[after, KEY], rows[after, SERIAL])
        if in_the_way:
            while at < count and rows[pool[first + at], LENGTH_MS] > window_ms:
                at += 1
        if at < count:
            row = pool[first + at]
            if (
                best == NO_ROW
                or rows[row, KEY] < rows[best, KEY]
                or (rows[row, KEY] == rows[best, KEY] and rows[row, SERIAL] < rows[best, SERIAL])
            ):
                best = row
    return best


@compiled
def fits_again(
    block: IntArray,
    requests: IntArray,
    lanes: IntArray,  # (T, LANE_COLUMNS), written
    types: IntArray,  # request types
    marks: IntArray,  # (N,): the versions of nodes that were seen; brought up to date
    free_total_milli: int,
) -> None:
    """Open those of the lanes of these types that may fit on nodes that have changed since the marks were made."""
    arrays = compiled_arrays_of(block)
    free_cpu, free_mem, free_milli, free_gpu_mem, traits, version, _, _, _, _, _, _ = arrays
    room = Room(free_cpu, free_mem, free_milli, free_gpu_mem)
    for node in range(version.shape[0]):
        if marks[node] == version[node]:
            continue
        marks[node] = version[node]
        for at in range(types.shape[0]):
            number = types[at]
            if lanes[number, STATE] != OPEN:
                request = requests[number]
                spreads = request[ALL_NODES] == 0 and request[ALL_GPUS] > 1
                if request[ALL_GPUS] * request[MILLI] > free_total_milli:
                    continue
                if counted_on(node, request, spreads, room, traits) > 0:
                    lanes[number, STATE] = OPEN
