"""Which jobs start on which GPUs, compiled: the best pair of a kind of job and a class of GPUs first.

Letters: G GPUs, N nodes, C classes of GPUs with like tenants, K kinds of jobs, R rows of waiting jobs, L jobs of a row
that are looked at, S starts. Of a class the GPUs are a list, in `first` and `following`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from berth.arrays import BoolArray, FloatArray, IntArray, compiled
from berth.network.pair_network import (
    COST,
    EXTRA,
    HELD,
    IDLE,
    LASTS,
    ONE,
    PEAK,
    QUEUE,
    SUITS,
    TAKEN,
    TENANTS,
    USE,
    WAITED,
    WORK,
    PairNetwork,
    judge,
)

UNKNOWN, FITS, NOT_FIT = 0, 1, 2
"""What is known of a pair."""
NONE, LATER = -1, -2
"""In place of a class: it is not known yet; it is looked at again after what starts has started."""
DONE, NO_SCORE, NO_CLASS, MORE = 0, 1, 2, 3
"""Why `start_best` ends: no pair is worth starting; a score or the class after a start is missing, which `asked`
names; a row has more jobs than it was shown."""
MILLI, CPU, MEM, GPU_MEM = range(4)
"""What a job asks for."""
NEVER_MS = 1 << 40


class Classes(NamedTuple):
    """Classes of GPUs, and what starting a job of each kind there costs."""

    cost_ms: IntArray  # (C, K): by how much the tenants end later, and the job later than alone
    extra_ms: IntArray  # (C, K): for how much longer the GPU is in use
    state: IntArray  # (C, K): UNKNOWN, FITS or NOT_FIT
    after: IntArray  # (C, K): the class that the GPU is of then, NONE or LATER
    idle: BoolArray  # (C,)
    alike: IntArray  # (C,): the number of its GPUs' nodes
    tenants: FloatArray  # (C, 4): how many, use of compute and memory, ms until they have ended
    first: IntArray  # (C,): its first GPU, NONE if it has none
    many: IntArray  # (C,): how many GPUs it has
    used: IntArray  # (C,): the classes that have GPUs, in the first places
    place: IntArray  # (C,): where in `used` each is


class Gpus(NamedTuple):
    """GPUs, and what is left of them and of their nodes."""

    following: IntArray  # (G,): the next GPU of its class
    node: IntArray  # (G,)
    milli: IntArray  # (G,)
    mem_mib: IntArray  # (G,)
    cpu_milli: IntArray  # (N,)
    node_mem_mib: IntArray  # (N,)


class Rows(NamedTuple):
    """Waiting jobs."""

    kind: IntArray  # (R, L): of the first jobs of each row
    turn: FloatArray  # (R, L): the smaller is first of pairs that are equally good
    length: IntArray  # (R,): how many jobs of it are looked at
    more: BoolArray  # (R,): whether it has others
    line: IntArray  # (R,): which line of `empty_ms` it stands in
    asks: IntArray  # (K, 4): MILLI, CPU, MEM and GPU_MEM of a job of each kind
    work_ms: IntArray  # (K,)
    needs: FloatArray  # (alike, K, 3): USE, MEM and SUITS of a job of each kind on nodes of each number


@compiled
def _put(gpu: int, to: int, classes: Classes, gpus: Gpus, counts: IntArray) -> None:
    """Add a GPU to a class."""
    gpus.following[gpu] = classes.first[to]
    classes.first[to] = gpu
    if classes.many[to] == 0:
        classes.place[to] = counts[1]
        classes.used[counts[1]] = to
        counts[1] += 1
    classes.many[to] += 1


@compiled
def _leave(gpu: int, before: int, of: int, classes: Classes, gpus: Gpus, counts: IntArray) -> None:
    """Take a GPU out of a class; `before` is the one before it, or NONE."""
    if before == NONE:
        classes.first[of] = gpus.following[gpu]
    else:
        gpus.following[before] = gpus.following[gpu]
    classes.many[of] -= 1
    if classes.many[of] == 0:
        counts[1] -= 1
        last = classes.used[counts[1]]
        classes.used[classes.place[of]] = last
        classes.place[last] = classes.place[of]


@compiled
def line_up(of: IntArray, classes: Classes, gpus: Gpus, counts: IntArray) -> None:
    """Make the lists of all classes: of (G,) is the class of each GPU, NONE if it takes no job. The first GPU is the
    first of its class."""
    classes.many[:] = 0
    classes.first[:] = NONE
    counts[1] = 0
    for gpu in range(of.shape[0] - 1, -1, -1):
        if of[gpu] != NONE:
            _put(gpu, of[gpu], classes, gpus, counts)


@compiled
def _wait_ms(ahead: int, idle: int, empty_ms: IntArray, lines: int, mean_ms: int) -> int:
    """For how long a job waits for a GPU of its own, with so many ahead of it."""
    if ahead < idle or idle + lines == 0:
        return 0 if ahead < idle else NEVER_MS
    turn = (ahead - idle) % lines if lines else 0
    rounds = (ahead - idle) // lines if lines else ahead // idle
    return (empty_ms[turn] if lines else 0) + rounds * mean_ms


@compiled
def start_best(
    classes: Classes,
    gpus: Gpus,
    rows: Rows,
    empty_ms: IntArray,  # (M, G): after how long GPUs with tenants are empty, ascending, of each line
    lines: IntArray,  # (M,): how many GPUs these are
    waiting: int,  # jobs that wait
    per_gpu: float,  # one over the number of GPUs
    mean_ms: int,  # work of a waiting job
    blocked: BoolArray,  # (C, R), in and out: classes whose GPUs have no room for a job of the row
    at: IntArray,  # (R,), in and out: how many jobs of each row have started
    found: IntArray,  # (S, 3), out: GPU, row, and the class of the GPU from then on
    counts: IntArray,  # (2,), in and out: how many have started, and how many classes have GPUs
    asked: IntArray,  # (2,), out
    asks_network: bool,
    network: PairNetwork,
    seen: FloatArray,  # (X,): to work in
    judged: FloatArray,  # (2,): to work in
    now_ms: int,
) -> int:
    """Start the best pair, again and again; why it ends."""
    many_rows = rows.kind.shape[0]
    seen[ONE] = 1.0
    while counts[0] < found.shape[0]:
        left = waiting - counts[0]
        queue = max(0, left - 1) * per_gpu
        seen[QUEUE] = np.log1p(queue)
        best_class, best_row, best, best_turn = NONE, NONE, 0.0, 0.0
        for row in range(many_rows):
            if at[row] >= rows.length[row]:
                if rows.more[row]:
                    return MORE
                continue
            kind = rows.kind[row, at[row]]
            idle = 0
            for place in range(counts[1]):
                here = classes.used[place]
                if classes.idle[here] and not blocked[here, row] and classes.state[here, kind] == FITS:
                    idle += classes.many[here]
            line = rows.line[row]
            wait_ms = _wait_ms(max(0, left - 1) // 2, idle, empty_ms[line], lines[line], mean_ms)
            for place in range(counts[1]):
                here = classes.used[place]
                if blocked[here, row]:
                    continue
                known = classes.state[here, kind]
                if known == UNKNOWN:
                    asked[0], asked[1] = here, kind
                    return NO_SCORE
                if known == NOT_FIT:
                    continue
                lost_ms = classes.cost_ms[here, kind] + queue * (
                    classes.extra_ms[here, kind] - rows.work_ms[kind]
                )
                if lost_ms > wait_ms and not classes.idle[here]:
                    continue
                work_ms, turn = rows.work_ms[kind], rows.turn[row, at[row]]
                score = lost_ms / work_ms
                if asks_network:
                    tenants, needs = classes.tenants[here], rows.needs[classes.alike[here], kind]
                    seen[COST] = min(2.0, classes.cost_ms[here, kind] / work_ms)
                    seen[EXTRA] = classes.extra_ms[here, kind] / work_ms
                    seen[TENANTS], seen[TAKEN], seen[HELD] = tenants[0] / 4, tenants[1], tenants[2]
                    seen[LASTS] = min(3.0, tenants[3] / mean_ms)
                    seen[USE], seen[PEAK], seen[SUITS] = needs[0], needs[1], needs[2]
                    seen[WORK] = np.log(work_ms / mean_ms)
                    seen[WAITED] = min(4.0, (now_ms - turn) / mean_ms)
                    seen[IDLE] = idle * per_gpu
                    judge(network, seen, judged)
                    score += judged[0]
                    if lost_ms + judged[1] * work_ms > wait_ms and not classes.idle[here]:
                        continue
                if (
                    best_row == NONE
                    or score < best
                    or (
                        score == best
                        and (
                            turn < best_turn
                            or (row == best_row and classes.first[here] < classes.first[best_class])
                        )
                    )
                ):
                    best_class, best_row, best, best_turn = here, row, score, turn
        if best_row == NONE:
            return DONE
        kind = rows.kind[best_row, at[best_row]]
        then = classes.after[best_class, kind]
        if then == NONE:
            asked[0], asked[1] = best_class, kind
            return NO_CLASS
        gpu, before = classes.first[best_class], NONE
        while gpu != NONE and not _has_room(gpu, rows.asks[kind], gpus):
            gpu, before = gpus.following[gpu], gpu
        if gpu == NONE:
            blocked[best_class, best_row] = True
            continue
        node = gpus.node[gpu]
        gpus.milli[gpu] -= rows.asks[kind, MILLI]
        gpus.mem_mib[gpu] -= rows.asks[kind, GPU_MEM]
        gpus.cpu_milli[node] -= rows.asks[kind, CPU]
        gpus.node_mem_mib[node] -= rows.asks[kind, MEM]
        _leave(gpu, before, best_class, classes, gpus, counts)
        if then != LATER:
            _put(gpu, then, classes, gpus, counts)
            # A GPU with room comes to a class that may have been without.
            blocked[then, :] = False
        found[counts[0], 0], found[counts[0], 1], found[counts[0], 2] = gpu, best_row, then
        counts[0] += 1
        at[best_row] += 1
    return DONE


@compiled
def _has_room(gpu: int, asks: IntArray, gpus: Gpus) -> bool:
    """Whether the GPU and its node have what a job asks for."""
    node = gpus.node[gpu]
    return bool(
        asks[MILLI] <= gpus.milli[gpu]
        and asks[GPU_MEM] <= gpus.mem_mib[gpu]
        and asks[CPU] <= gpus.cpu_milli[node]
        and asks[MEM] <= gpus.node_mem_mib[node]
    )
