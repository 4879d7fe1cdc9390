"""What Numba compiles for EASY: when running jobs leave room for the first waiting one, and what that leaves others.

Letters: N nodes, G GPU slots of the largest node, R rows for runs, S slots. *Room* is one array with what is free at
some time, as it lies in a cluster's block: CPU (N,), memory (N,), GPU milli (N, G) and GPU memory (N, G).
"""

from __future__ import annotations

from typing import NamedTuple

from berth.arrays import BoolArray, IntArray, compiled
from berth.cluster.kernels import (
    ALL_CPU,
    ALL_GPUS,
    ALL_MEM,
    ALL_NODES,
    CPU,
    GPU_MEM,
    GPUS,
    MEM,
    MILLI,
    UP,
    choose_devices,
    compiled_arrays_of,
    compiled_is_allowed,
    fits,
    fitting_nodes,
    spread_slots,
)
from berth.model import FOREVER_MS

# Columns of a run: its expected end, what it takes of each GPU and altogether, and where its slots begin in the pool.
END_MS, RUN_MILLI, RUN_GPU_MEM, RUN_CPU, RUN_MEM, FIRST_SLOT, SLOTS = range(7)
RUN_COLUMNS = 7


class Room(NamedTuple):
    """The arrays of a room."""

    cpu: IntArray  # (N,)
    mem: IntArray  # (N,)
    milli: IntArray  # (N, G)
    gpu_mem: IntArray  # (N, G)


@compiled
def room_in(room: IntArray, n: int, width: int) -> Room:
    """Where the arrays of a room lie."""
    gpus = 2 * n + n * width
    return Room(
        room[:n],
        room[n : 2 * n],
        room[2 * n : gpus].reshape((n, width)),
        room[gpus : gpus + n * width].reshape((n, width)),
    )


@compiled
def place_of_end(runs: IntArray, by_end: IntArray, first: int, count: int, end_ms: int) -> int:
    """The first place in `by_end` whose run ends no sooner."""
    low, high = first, first + count
    while low < high:
        middle = (low + high) // 2
        if runs[by_end[middle], END_MS] < end_ms:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def note_end(
    runs: IntArray,  # (R, RUN_COLUMNS), written
    by_end: IntArray,  # rows in the order of their ends, from place `first` on; written
    first: int,
    count: int,
    requests: IntArray,
    number: int,  # the request type of its job
    row: int,
    end_ms: int,
    milli: int,
    gpu_mem: int,
    first_slot: int,
    slots: int,
) -> None:
    """Note a run and its expected end."""
    at = place_of_end(runs, by_end, first, count, end_ms)
    for place in range(first + count, at, -1):
        by_end[place] = by_end[place - 1]
    by_end[at] = row
    runs[row, END_MS] = end_ms
    runs[row, RUN_MILLI] = milli
    runs[row, RUN_GPU_MEM] = gpu_mem
    runs[row, RUN_CPU] = requests[number, ALL_CPU]
    runs[row, RUN_MEM] = requests[number, ALL_MEM]
    runs[row, FIRST_SLOT] = first_slot
    runs[row, SLOTS] = slots


@compiled
def drop_end(runs: IntArray, by_end: IntArray, first: int, count: int, row: int) -> None:
    """Take a run out of the order of ends."""
    at = place_of_end(runs, by_end, first, count, runs[row, END_MS])
    while by_end[at] != row:
        at += 1
    for place in range(at, first + count - 1):
        by_end[place] = by_end[place + 1]


@compiled
def change(
    room: Room,
    slots: IntArray,  # (≥ first + count, 2)
    first: int,
    count: int,
    cpu: int,
    mem: int,
    milli: int,
    gpu_mem: int,
    sign: int,  # 1 to give back, −1 to take
    there: IntArray,  # (N,), 0 before and after: how many of the slots lie on a node
) -> None:
    """Give back, or take, what a job has on these slots."""
    if count == 1:
        node = slots[first, 0]
        room.cpu[node] += sign * cpu
        room.mem[node] += sign * mem
    else:
        for place in range(first, first + count):
            there[slots[place, 0]] += 1
        for place in range(first, first + count):
            node = slots[place, 0]
            if there[node]:
                room.cpu[node] += sign * -(-cpu * there[node] // count)
                room.mem[node] += sign * -(-mem * there[node] // count)
                there[node] = 0
    for place in range(first, first + count):
        if slots[place, 1] >= 0:
            room.milli[slots[place, 0], slots[place, 1]] += sign * milli
            room.gpu_mem[slots[place, 0], slots[place, 1]] += sign * gpu_mem


@compiled
def take_slots(
    room: IntArray,  # written
    requests: IntArray,
    number: int,
    slots: IntArray,  # (S, 2)
    count: int,
    sign: int,  # −1 to take what the request asks for, 1 to give it back
    there: IntArray,  # (N,), scratch
    width: int,
) -> None:
    """Take what a request asks for on these slots, or give it back."""
    asked = requests[number]
    arrays = room_in(room, there.shape[0], width)
    change(arrays, slots, 0, count, asked[ALL_CPU], asked[ALL_MEM], asked[MILLI], asked[GPU_MEM], sign, there)


@compiled
def devices_on(node: int, request: IntArray, room: Room, traits: IntArray) -> int:
    """How many GPUs of a node one GPU of the request fits on, CPU and memory left aside."""
    if traits[node, UP] == 0 or not compiled_is_allowed(request, traits, node):
        return 0
    found = 0
    for index in range(room.milli.shape[1]):
        found += (room.milli[node, index] >= request[MILLI]) & (room.gpu_mem[node, index] >= request[GPU_MEM])
    return found


@compiled
def counted_on(node: int, request: IntArray, spreads: bool, room: Room, traits: IntArray) -> int:
    """What a node has for a request: GPUs for a request that spreads, itself for another."""
    if spreads:
        return devices_on(node, request, room, traits)
    return int(fits(node, request, room.cpu, room.mem, room.milli, room.gpu_mem, traits))


@compiled
def chosen_slots(
    block: IntArray,
    request: IntArray,
    room: Room,
    by_rank: IntArray,  # (N,): the nodes, the first by rank first
    slots: IntArray,  # (N·(G + 1), 2), written
    scratch: IntArray,  # (3, N + G), overwritten
) -> int:
    """Choose slots on the first nodes that fit, or on as few as will hold the request; their number, 0 for none."""
    arrays = compiled_arrays_of(block)
    traits = arrays.traits
    n, width = room.milli.shape
    wanted = max(1, request[ALL_NODES])
    nodes = scratch[0]
    found = 0
    for place in range(n if request[GPUS] <= width else 0):
        node = by_rank[place]
        if fits(node, request, room.cpu, room.mem, room.milli, room.gpu_mem, traits):
            nodes[found] = node
            found += 1
            if found == wanted:
                break
    if found == wanted:
        gpus = request[GPUS]
        count = 0
        for part in range(wanted):
            if gpus == 0:
                slots[count, 0] = nodes[part]
                slots[count, 1] = -1
                count += 1
                continue
            choose_devices(nodes[part], request, room.milli, room.gpu_mem, True, scratch[1])
            for place in range(gpus):
                slots[count, 0] = nodes[part]
                slots[count, 1] = scratch[1, place]
                count += 1
        return count
    if request[ALL_NODES] != 0:
        return 0
    return spread_slots(
        request, arrays.rank, room.cpu, room.mem, room.milli, room.gpu_mem, traits, slots, scratch
    )


@compiled
def choose_slots(
    block: IntArray,
    requests: IntArray,
    number: int,
    room: IntArray,
    by_rank: IntArray,  # (N,)
    slots: IntArray,  # (N·(G + 1), 2), written
    scratch: IntArray,  # (3, N + G), overwritten
) -> int:
    """Choose slots for a request in this room: how many; 0 where it does not fit."""
    arrays = room_in(room, block[0], block[1])
    return chosen_slots(block, requests[number], arrays, by_rank, slots, scratch)


@compiled
def find_room(
    block: IntArray,
    requests: IntArray,
    number: int,  # of the first job that waits
    room: IntArray,  # what is free now; written: what is free at the time returned, without what the job takes
    runs: IntArray,  # (R, RUN_COLUMNS)
    by_end: IntArray,
    first: int,
    count: int,
    pool: IntArray,  # (P, 2): slots of runs
    now_ms: int,
    free_milli: int,  # GPU milli free now, or more
    by_rank: IntArray,  # (N,)
    slots: IntArray,  # (N·(G + 1), 2), written: the slots that the job takes
    scratch: IntArray,  # (3, N + G), overwritten
    there: IntArray,  # (N,), scratch
    out: IntArray,  # (2,), written: how many slots the job takes, and GPU milli that are free then besides
) -> int:
    """The earliest time at which enough runs are expected to have ended for a request; FOREVER_MS for never."""
    traits = compiled_arrays_of(block).traits
    arrays = room_in(room, block[0], block[1])
    request = requests[number]
    spreads = request[ALL_NODES] == 0 and request[ALL_GPUS] > 1
    found = False
    chosen = 0
    time_ms = FOREVER_MS
    for place in range(first, first + count):
        row = by_end[place]
        if found and runs[row, END_MS] > time_ms:
            break
        at = runs[row, FIRST_SLOT]
        held = runs[row, SLOTS]
        cpu, mem, milli = runs[row, RUN_CPU], runs[row, RUN_MEM], runs[row, RUN_MILLI]
        change(arrays, pool, at, held, cpu, mem, milli, runs[row, RUN_GPU_MEM], 1, there)
        free_milli += milli * held
        if found:
            chosen = 0  # this one ends at the same time, and leaves more room
            continue
        if request[ALL_GPUS] * request[MILLI] > free_milli:
            continue
        may_fit = False
        for slot in range(at, at + held):
            may_fit = may_fit or counted_on(pool[slot, 0], request, spreads, arrays, traits) > 0
        if may_fit:
            chosen = chosen_slots(block, request, arrays, by_rank, slots, scratch)
            found = chosen > 0
        if found:
            time_ms = max(runs[row, END_MS], now_ms + 1)
    out[0] = 0
    if found:
        out[0] = chosen if chosen > 0 else chosen_slots(block, request, arrays, by_rank, slots, scratch)
        take_slots(room, requests, number, slots, out[0], -1, there, block[1])
        out[1] = 0
        for node in range(block[0]):
            for index in range(block[1]):
                out[1] += max(0, arrays.milli[node, index])
    return time_ms


@compiled
def has_room(
    room: Room,
    request: IntArray,
    slots: IntArray,
    count: int,
    there: IntArray,  # (N,), scratch
) -> bool:
    """Whether a job could take these slots."""
    good = True
    for place in range(count):
        node, index = slots[place, 0], slots[place, 1]
        there[node] += 1
        if index >= 0:
            good = (
                good
                and room.milli[node, index] >= request[MILLI]
                and room.gpu_mem[node, index] >= request[GPU_MEM]
            )
    for place in range(count):
        node = slots[place, 0]
        part = there[node]
        there[node] = 0
        if part:
            good = good and room.cpu[node] >= -(-request[ALL_CPU] * part // count)
            good = good and room.mem[node] >= -(-request[ALL_MEM] * part // count)
    return good


@compiled
def spares(
    block: IntArray,
    requests: IntArray,
    head: int,  # the request of the first job that waits
    number: int,  # the request of a job that would start before it
    room: IntArray,  # what is free when the first job starts, without what it takes; restored
    head_slots: IntArray,  # (N·(G + 1), 2): the slots that the first job takes; others where those are as good
    head_count: int,  # how many; 0 where it never starts
    slots: IntArray,  # (S, 2): those of the other job
    count: int,
    by_rank: IntArray,  # (N,)
    others: IntArray,  # (N·(G + 1), 2), overwritten
    scratch: IntArray,  # (3, N + G), overwritten
    there: IntArray,  # (N,), scratch
) -> bool:
    """Whether a job on these slots leaves the first job room, on the slots noted for it or on others."""
    width = block[1]
    arrays = room_in(room, block[0], width)
    request = requests[number]
    if head_count == 0 or has_room(arrays, request, slots, count, there):
        return True
    take_slots(room, requests, head, head_slots, head_count, 1, there, width)
    good = has_room(arrays, request, slots, count, there)
    if good:
        take_slots(room, requests, number, slots, count, -1, there, width)
        good = chosen_slots(block, requests[head], arrays, by_rank, others, scratch) == head_count
        take_slots(room, requests, number, slots, count, 1, there, width)
        if good:
            for place in range(head_count):
                head_slots[place, 0] = others[place, 0]
                head_slots[place, 1] = others[place, 1]
    take_slots(room, requests, head, head_slots, head_count, -1, there, width)
    return good


@compiled
def fits_in_both(
    block: IntArray,  # what is free now
    requests: IntArray,
    number: int,
    room: IntArray,  # what is free later
) -> bool:
    """Whether a request might find room on the same nodes now and later; not whether on the same GPUs."""
    arrays = compiled_arrays_of(block)
    now = Room(arrays.free_cpu, arrays.free_mem, arrays.free_milli, arrays.free_gpu_mem)
    later = room_in(room, block[0], block[1])
    request = requests[number]
    spreads = request[ALL_NODES] == 0 and request[ALL_GPUS] > 1
    missing = request[ALL_GPUS] if spreads else max(1, request[ALL_NODES])
    for node in range(block[0]):
        here = counted_on(node, request, spreads, now, arrays.traits)
        if here > 0:
            missing -= min(here, counted_on(node, request, spreads, later, arrays.traits))
            if missing <= 0:
                return True
    return False


@compiled
def sparing_nodes(
    block: IntArray,  # what is free now
    requests: IntArray,
    head: int,  # the request of the first job that waits
    number: int,  # the request of a job of one part
    room: IntArray,  # what is free when the first job starts, without what it takes; restored
    head_slots: IntArray,  # (≥ head_count, 2)
    head_count: int,
    there: IntArray,  # (N,), scratch
    chosen: IntArray,  # (≥ G,), overwritten
    found: BoolArray,  # (N,), written
) -> None:
    """Whether the job fits on each node now, and leaves the first job room later."""
    free_cpu, free_mem, free_milli, free_gpu_mem, traits, _, _, _, _, _, _, _ = compiled_arrays_of(block)
    take_slots(room, requests, head, head_slots, head_count, 1, there, block[1])
    cpu, mem, milli, gpu_mem = room_in(room, block[0], block[1])
    asked, request = requests[head], requests[number]
    fitting_nodes(asked, cpu, mem, milli, gpu_mem, traits, found)
    spare = found.sum() - max(1, asked[ALL_NODES])
    for node in range(block[0]):
        needed = found[node] and spare == 0
        found[node] = spare >= 0 and fits(node, request, free_cpu, free_mem, free_milli, free_gpu_mem, traits)
        if not (needed and found[node]):
            continue
        choose_devices(node, request, free_milli, free_gpu_mem, True, chosen)
        for sign in (-1, 1):
            cpu[node] += sign * request[CPU]
            mem[node] += sign * request[MEM]
            for place in range(request[GPUS]):
                milli[node, chosen[place]] += sign * request[MILLI]
                gpu_mem[node, chosen[place]] += sign * request[GPU_MEM]
            if sign < 0:
                found[node] = fits(node, asked, cpu, mem, milli, gpu_mem, traits)
    take_slots(room, requests, head, head_slots, head_count, -1, there, block[1])
